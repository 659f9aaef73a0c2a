package dbtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// Replication is how far a commit on the primary waits for its standby.
type Replication int

const (
	// Flushed waits until the standby has the commit on its disk
	// (synchronous_commit = on), so that a failover loses nothing acknowledged.
	Flushed Replication = iota
	// Applied waits until queries on the standby see it, too (remote_apply).
	Applied
	// Asynchronous does not wait: a failover may lose commits.
	Asynchronous
)

// StandbyOptions describe a standby. The zero value is good.
type StandbyOptions struct {
	// Replication is what a commit on the primary waits for. Default: Flushed.
	Replication Replication
	// Config is added to the configuration that the standby has from its primary.
	Config map[string]string
}

// Standby starts a hot standby of a private server and makes that one replicate
// to it. It returns when the standby streams, and is synchronous if it is to be.
// While a synchronous standby is down or paused, commits on the primary hang.
func Standby(tb testing.TB, primary *Server, o StandbyOptions) *Server {
	tb.Helper()
	primary.own("Standby")
	p, c, err := bareServer(primary.in, primary.config)
	if err != nil {
		tb.Fatal(err)
	}
	p.name = "standby, " + p.name
	name := fmt.Sprintf("standby%d", p.port.number)
	maps.Copy(c.config, o.Config)
	c.config["primary_conninfo"] = fmt.Sprintf("host=%s port=%d user=postgres application_name=%s", primary.dir, primary.port.number, name)
	c.config["primary_slot_name"] = name
	c.config["hot_standby"] = "on"
	// Between attempts to reach the primary; promotion may have to wait for one.
	c.config["wal_retrieve_retry_interval"] = "100ms"
	// The slot keeps what the standby has not got yet.
	primary.Exec("postgres", fmt.Sprintf("SELECT pg_create_physical_replication_slot('%s', true)", name))
	err = baseBackup(primary, c.data)
	if err == nil {
		err = c.writeConfig(p)
	}
	if err != nil {
		_ = p.close()
		tb.Fatalf("copy the primary: %v", err)
	}
	s := &Server{private(tb, p), c}

	want := "streaming|async"
	if o.Replication != Asynchronous {
		want = "streaming|sync"
		commit := "on"
		if o.Replication == Applied {
			commit = "remote_apply"
		}
		primary.SetConfig("synchronous_commit", commit)
		primary.SetConfig("synchronous_standby_names", "FIRST 1 ("+name+")")
		primary.Reload()
	}
	state := fmt.Sprintf("SELECT state, sync_state FROM pg_stat_replication WHERE application_name = '%s'", name)
	err = poll(func() (bool, error) {
		got, err := querySQL(primary.SocketDSN("postgres"), state)
		return got == want, err
	})
	if err != nil {
		tb.Fatalf("standby did not become %s: %v; its log:\n%s", want, err, lastLines(s.Log(), 30))
	}
	return s
}

// baseBackup copies the files of a running server, as pg_basebackup does, which
// not every installation has.
func baseBackup(primary *Server, dst string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// A backup ends with the session that began it.
	conn, err := pgconn.Connect(ctx, primary.SocketDSN("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := queryConn(ctx, conn, "SELECT pg_backup_start('kakutei', true)"); err != nil {
		return err
	}
	if err := copyTree(primary.data, dst, true, notInBackup); err != nil {
		return err
	}
	label, err := queryConn(ctx, conn, "SELECT labelfile FROM pg_backup_stop(false)")
	if err != nil {
		return err
	}
	return errors.Join(
		writeFile(filepath.Join(dst, "backup_label"), label),
		writeFile(filepath.Join(dst, "standby.signal"), ""),
	)
}

// notInBackup leaves out what belongs to the running server, and all WAL: the
// standby streams it.
func notInBackup(rel string) bool {
	switch rel {
	case "postmaster.pid", "postmaster.opts", confFile, confFile + ".new":
		return true
	}
	switch filepath.Dir(rel) {
	case "pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_stat_tmp", "pg_subtrans":
		return true
	}
	base := filepath.Base(rel)
	return strings.HasPrefix(base, "pgsql_tmp") || strings.HasPrefix(base, "pg_internal.init")
}

// Promote makes a standby a primary and returns when it accepts writes. It first
// clears synchronous_standby_names: a standby has it from its primary, and would
// hang on its first write, waiting for a standby of its own.
func (s *Server) Promote() {
	s.tb.Helper()
	s.own("Promote")
	s.SetConfig("synchronous_standby_names", "")
	s.Exec("postgres", "ALTER SYSTEM RESET synchronous_standby_names") // comes before any file
	s.Reload()
	if s.Query("postgres", "SELECT pg_promote(true, 60)") != "t" {
		s.tb.Fatal("the standby was not promoted in time")
	}
}
