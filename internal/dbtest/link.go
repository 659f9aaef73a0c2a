package dbtest

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is one connection through a Switch.
type link struct {
	sw     *Switch
	client *net.TCPConn

	mu     sync.Mutex
	server *net.TCPConn // nil until connected
	done   chan struct{}
	ended  bool

	stalled   chan struct{} // closed: nothing passes any more
	stallOnce sync.Once
	loseReply atomic.Bool // the next bytes from the server end the link
}

// packet is something on its way, or, without data, the sender's end.
type packet struct {
	data []byte
	due  time.Time
	then Action // what happens to the link when the data has been passed on; 0: nothing
	end  bool
}

func newLink(sw *Switch, client *net.TCPConn) *link {
	return &link{sw: sw, client: client, done: make(chan struct{}), stalled: make(chan struct{})}
}

func (l *link) run() {
	defer l.sw.forget(l)
	if !l.sw.wait(l) || !l.connect() {
		l.reset()
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { l.pump(ToServer, l.client, l.server) })
	wg.Go(func() { l.pump(ToClient, l.server, l.client) })
	wg.Wait()
	l.close(false)
}

func (l *link) connect() bool {
	l.sw.mu.Lock()
	target := l.sw.target
	l.sw.mu.Unlock()
	if target == "" {
		return false
	}
	conn, err := net.DialTimeout("tcp", target, patience)
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = conn.(*net.TCPConn)
	if l.ended {
		_ = l.server.Close()
		return false
	}
	return true
}

// pump passes on what comes from src until that ends.
func (l *link) pump(dir Direction, src, dst *net.TCPConn) {
	// Room for what is on its way while it is delayed.
	packets := make(chan packet, 1024)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { l.write(packets, dst) })
	for {
		data := make([]byte, 16<<10)
		n, err := src.Read(data)
		if n > 0 && dir == ToClient && l.loseReply.Load() {
			l.reset()
			return
		}
		now := time.Now()
		l.sw.mu.Lock()
		due := now.Add(l.sw.delay)
		pass, then := data[:n], Action(0)
		if n > 0 && l.sw.fault != nil {
			pass, then = l.sw.fault.meet(l, dir, data[:n])
		}
		l.sw.mu.Unlock()
		if n > 0 && !l.send(packets, packet{data: pass, due: due, then: then}) {
			return
		}
		switch {
		case errors.Is(err, io.EOF):
			l.send(packets, packet{due: due, end: true})
			return
		case err != nil:
			l.reset() // as it was reset itself
			return
		}
	}
}

func (l *link) send(packets chan<- packet, p packet) bool {
	select {
	case packets <- p:
		return true
	case <-l.done:
		return false
	}
}

// write delivers packets when they are due, until the end or the end of the link.
func (l *link) write(packets <-chan packet, dst *net.TCPConn) {
	for {
		var p packet
		select {
		case p = <-packets:
		case <-l.done:
			return
		}
		if !l.sleep(time.Until(p.due)) || !l.sw.wait(l) {
			return
		}
		select {
		case <-l.stalled:
			<-l.done
			return
		default:
		}
		if p.then == LoseReply {
			l.loseReply.Store(true) // before the server can answer
		}
		if _, err := dst.Write(p.data); err != nil {
			l.reset()
			return
		}
		switch p.then {
		case CutOff:
			l.reset()
			return
		case Stall:
			l.stallOnce.Do(func() { close(l.stalled) })
		}
		if p.end {
			_ = dst.CloseWrite()
			return
		}
	}
}

func (l *link) sleep(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.done:
		return false
	}
}

// reset ends both sides at once, as if the peer had vanished.
func (l *link) reset() { l.close(true) }

func (l *link) close(reset bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended = true
	close(l.done)
	for _, conn := range []*net.TCPConn{l.client, l.server} {
		if conn == nil {
			continue
		}
		if reset {
			_ = conn.SetLinger(0)
		}
		_ = conn.Close()
	}
}
