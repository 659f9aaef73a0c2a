package dbtest

import (
	"sync"
	"testing"
)

// sharedServers holds one server for each version that the tests of this process
// have asked for. They end with the process.
var sharedServers struct {
	mu     sync.Mutex
	starts map[string]func() (*Server, error)
}

// Shared returns the server that all tests of this process use, started by the
// first that asks. Each test makes its own databases on it (Server.Database). It
// may not be killed, stopped, paused or configured.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	return SharedVersion(tb, "")
}

// SharedVersion is Shared on a version of Versions.
func SharedVersion(tb testing.TB, version string) *Server {
	tb.Helper()
	in := findPostgres(tb, version)
	server, err := sharedStart(in)()
	if err != nil {
		tb.Fatal(err)
	}
	s := &Server{server.daemon, server.cluster}
	s.tb, s.shared, s.logFrom = tb, true, len(s.log())
	tb.Cleanup(s.tail)
	return s
}

func sharedStart(in install) func() (*Server, error) {
	shared := &sharedServers
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.starts == nil {
		shared.starts = map[string]func() (*Server, error){}
	}
	if shared.starts[in.major] == nil {
		shared.starts[in.major] = sync.OnceValues(func() (*Server, error) {
			p, c, err := newPostgres(in, nil)
			if err != nil {
				return nil, err
			}
			return &Server{daemon{process: p}, c}, p.start()
		})
	}
	return shared.starts[in.major]
}
