package kakutei

// Inside is what an engine holds in memory at one moment.
type Inside struct{ Flights, Leases, Running, Waits int }

// Inside counts what the engine holds; all of it must be zero when it is idle.
func (e *Engine) Inside() (in Inside) {
	e.flights.mu.Lock()
	in.Flights = len(e.flights.byID)
	e.flights.mu.Unlock()
	e.leases.mu.Lock()
	in.Leases = len(e.leases.held)
	e.leases.mu.Unlock()
	e.mu.Lock()
	in.Running = len(e.running)
	e.mu.Unlock()
	e.waiters.mu.Lock()
	in.Waits = len(e.waiters.waits)
	e.waiters.mu.Unlock()
	return in
}

// WaitersLooking reports whether the goroutine that looks for waiters is alive.
func (e *Engine) WaitersLooking() bool {
	e.waiters.mu.Lock()
	defer e.waiters.mu.Unlock()
	return e.waiters.running
}

// Remembered returns how many results the engine remembers, and their bytes.
func (e *Engine) Remembered() (results int, bytes int64) {
	if e.replays == nil {
		return 0, 0
	}
	e.replays.mu.Lock()
	defer e.replays.mu.Unlock()
	return len(e.replays.byID), e.replays.bytes
}

// For the tests of package kakutei_test.
const (
	WaitInterval   = waitInterval
	RetainInterval = retainInterval
	LateLimit      = lateLimit
)

// CanonicalMediaType is canonicalMediaType.
func CanonicalMediaType(v string) string { return canonicalMediaType(v) }
