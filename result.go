package kakutei

// Result is the final answer of an operation, as it is recorded and replayed.
type Result struct {
	// Code is the status of an HTTP answer; 0 for results of [Do].
	Code int
	// Header is the encoded header of an HTTP answer, opaque to the engine.
	Header []byte
	// Body is the answer, byte for byte.
	Body []byte
	// Omitted says why Body was not kept ("too-large", "hijacked", "incomplete");
	// empty means that it was. The operation is settled either way and never runs again.
	Omitted string
}

// sizeBytes is what the result costs in memory, roughly.
func (r Result) sizeBytes() int64 {
	return int64(len(r.Header) + len(r.Body) + len(r.Omitted))
}

// Finality says what the end of an attempt means for its operation.
type Finality uint8

const (
	// FinalityUnknown: no final answer, and the effect may have happened. The
	// recovery of the route decides. It is the zero value: the safe reading.
	FinalityUnknown Finality = iota
	// FinalityFinal: the answer stands. It is recorded, and every retry gets it.
	FinalityFinal
	// FinalityNoEffect: certainly nothing was done. The operation may run again.
	FinalityNoEffect
)

// String returns the name used in events.
func (f Finality) String() string {
	switch f {
	case FinalityFinal:
		return "final"
	case FinalityNoEffect:
		return "no-effect"
	}
	return "unknown"
}

// Ending is how one run of a handler ended.
type Ending struct {
	Finality Finality
	// Result is what is recorded. For endings that are not final only its Code
	// is kept, for the audit trail.
	Result Result
	// Sent tells that a part of the answer has left already, so that the
	// function cannot be run again for the same caller.
	Sent bool
}

// Answer is what [Engine.Run] settled on.
type Answer struct {
	// Replayed tells that Result is the recorded answer of an earlier or
	// concurrent attempt. If it is false, the function ran in this call and its
	// own ending stands.
	Replayed bool
	// Result is the answer to give.
	Result Result
	// Attempt is the number of the attempt that the answer is from.
	Attempt int64
	// Unrecorded tells that the function ran to a final answer which the store
	// could not take: it was lost after the effect. The engine goes on trying in
	// the background; until it succeeds a retry is decided by the recovery.
	Unrecorded bool
}
