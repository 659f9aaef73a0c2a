package dbtest

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
)

// PostgresDSN is the URL of a database behind an address: that of a Server, a
// Bouncer or a Switch.
func PostgresDSN(addr, db string, params ...string) string {
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: addr, Path: "/" + db}
	query := url.Values{"sslmode": {"disable"}}
	for _, param := range params {
		name, value, _ := strings.Cut(param, "=")
		query.Set(name, value)
	}
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // drivers take + as it is
	return u.String()
}

// Database is a database that one test has for itself.
type Database struct {
	Name   string
	server *Server
}

var databases atomic.Int64

// Database makes an empty database. On the shared server it is dropped, whoever
// is still connected, when the test ends; a private server ends as a whole.
func (s *Server) Database() *Database {
	s.tb.Helper()
	return s.DatabaseFrom("template1")
}

// DatabaseFrom makes a database that is a copy of another one, such as one that
// has the schema already. Nobody may be connected to that one meanwhile.
func (s *Server) DatabaseFrom(template string) *Database {
	s.tb.Helper()
	db := &Database{fmt.Sprintf("test_%d", databases.Add(1)), s}
	s.Exec("postgres", fmt.Sprintf(`CREATE DATABASE %s TEMPLATE "%s"`, db.Name, template))
	if s.shared {
		s.tb.Cleanup(func() {
			if _, err := querySQL(s.SocketDSN("postgres"), "DROP DATABASE "+db.Name+" WITH (FORCE)"); err != nil {
				s.tb.Errorf("drop %s: %v", db.Name, err)
			}
		})
	}
	return db
}

// DSN is Server.DSN of the database.
func (db *Database) DSN(params ...string) string { return db.server.DSN(db.Name, params...) }

// SocketDSN is Server.SocketDSN of the database.
func (db *Database) SocketDSN(params ...string) string {
	return db.server.SocketDSN(db.Name, params...)
}

// Exec is Server.Exec in the database.
func (db *Database) Exec(sql string) {
	db.server.tb.Helper()
	db.server.Exec(db.Name, sql)
}

// Query is Server.Query in the database.
func (db *Database) Query(sql string) string {
	db.server.tb.Helper()
	return db.server.Query(db.Name, sql)
}

// Exec runs statements as the superuser, on a connection of its own.
func (s *Server) Exec(db, sql string) {
	s.tb.Helper()
	s.Query(db, sql)
}

// Query runs statements as the superuser, on a connection of its own, and
// returns their rows as psql -At prints them: a line for each, with | between
// columns and nothing for NULL.
func (s *Server) Query(db, sql string) string {
	s.tb.Helper()
	out, err := querySQL(s.SocketDSN(db), sql)
	if err != nil {
		s.tb.Fatalf("%s on %s: %v", sql, s.name, err)
	}
	return out
}

func querySQL(dsn, sql string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgconn.Connect(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	return queryConn(ctx, conn, sql)
}

func queryConn(ctx context.Context, conn *pgconn.PgConn, sql string) (string, error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return "", err
	}
	var lines []string
	for _, result := range results {
		for _, row := range result.Rows {
			columns := make([]string, len(row))
			for i, column := range row {
				columns[i] = string(column)
			}
			lines = append(lines, strings.Join(columns, "|"))
		}
	}
	return strings.Join(lines, "\n"), nil
}
