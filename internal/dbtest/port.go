package dbtest

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken from below the range that the kernel gives to outgoing
// connections (32768 and up): a client that tries to reach a server that is down
// would sooner or later be given the server's own port, be connected to itself,
// and keep the server from starting again.
const (
	portMin = 20000
	portMax = 32767
)

// port is a loopback port that belongs to one server, also while it is down.
type port struct {
	number int
	// claim keeps other test processes from the number. The kernel drops it with
	// the process.
	claim net.Listener
}

func takePort() (*port, error) {
	for range 1000 {
		n := portMin + rand.IntN(portMax-portMin+1)
		// An abstract socket: it has the scope of ports (the network namespace)
		// and leaves no file.
		claim, err := net.Listen("unix", "@kakutei-dbtest-port-"+strconv.Itoa(n))
		if err != nil {
			continue
		}
		p := &port{n, claim}
		// Somebody else's server?
		ln, err := net.Listen("tcp", p.addr())
		if err != nil {
			_ = p.release()
			continue
		}
		_ = ln.Close()
		return p, nil
	}
	return nil, errors.New("no free port")
}

func (p *port) addr() string { return "127.0.0.1:" + strconv.Itoa(p.number) }

func (p *port) release() error {
	if err := p.claim.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
