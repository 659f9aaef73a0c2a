package kakuteihttp

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/kakutei-go/kakutei"
)

// TypeBase is where the types of the problem documents are described.
const TypeBase = "https://github.com/kakutei-go/kakutei/blob/main/docs/protocol.md#"

// Problem is an RFC 9457 problem document. Its texts are fixed: nothing of the
// request, the record or a driver's error is in them.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// RetryAfter is sent as the header of that name, in whole seconds.
	RetryAfter time.Duration `json:"-"`
	// Err is the cause, for logs. It is not sent.
	Err error `json:"-"`
}

// The problems that the middleware answers with; docs/protocol.md says more.
var (
	problemKeyMissing = Problem{Type: TypeBase + "key-missing", Status: http.StatusBadRequest, Title: "Idempotency-Key is missing",
		Detail: "This operation must be safe to retry: send an Idempotency-Key header with a value that is new for each operation and the same for each retry of it."}
	problemKeyMalformed = Problem{Type: TypeBase + "key-malformed", Status: http.StatusBadRequest, Title: "Idempotency-Key is malformed",
		Detail: "Send one Idempotency-Key header with one key of 1 to 255 printable ASCII characters, as a quoted string such as \"8e03978e-40d5-43dd-bc93-6894a57f9324\"."}
	problemScope = Problem{Type: TypeBase + "scope-missing", Status: http.StatusBadRequest, Title: "The caller cannot be told",
		Detail: "An Idempotency-Key belongs to an account, and this request does not say which."}
	problemUnauthenticated = Problem{Type: TypeBase + "unauthenticated", Status: http.StatusUnauthorized, Title: "The caller is not authenticated",
		Detail: "An Idempotency-Key belongs to an account, and the credentials of this request are missing or not valid."}
	problemForbidden = Problem{Type: TypeBase + "replay-forbidden", Status: http.StatusForbidden, Title: "The recorded answer may not be given",
		Detail: "The operation is settled, but the caller has no right to its answer any more."}
	problemBodyUnreadable = Problem{Type: TypeBase + "body-unreadable", Status: http.StatusBadRequest, Title: "The request body could not be read",
		Detail: "The request broke off, or is shorter than its Content-Length. Nothing was done: send it again, whole, with the same key."}
	problemTooLarge = Problem{Type: TypeBase + "request-too-large", Status: http.StatusRequestEntityTooLarge, Title: "The request body is too large",
		Detail: "Requests with an Idempotency-Key are limited in size on this route. Nothing was done."}
	problemInFlight = Problem{Type: TypeBase + "in-flight", Status: http.StatusConflict, Title: "The operation is in progress",
		Detail: "A request with this Idempotency-Key is being processed. Wait for as long as Retry-After says, then send the same request again."}
	problemUncertain = Problem{Type: TypeBase + "uncertain", Status: http.StatusConflict, Title: "The outcome of the operation is uncertain",
		Detail: "An earlier request with this Idempotency-Key ended without an answer, and may have taken effect. It is not run again until this has been looked into. Do not send it under another key."}
	problemNotRetained = Problem{Type: TypeBase + "result-not-retained", Status: http.StatusConflict, Title: "The answer was not kept",
		Detail: "The operation with this Idempotency-Key is done and will not run again, but its answer could not be kept. Read the state of the resource instead."}
	problemMismatch = Problem{Type: TypeBase + "key-reused", Status: http.StatusUnprocessableEntity, Title: "The Idempotency-Key belongs to another request",
		Detail: "This key was used before with another method, path, query, media type or body. Use a new key for a new operation."}
	problemCorrupt = Problem{Type: TypeBase + "record-unreadable", Status: http.StatusInternalServerError, Title: "The record of the operation cannot be read",
		Detail: "There is a record for this Idempotency-Key which this server does not understand. Nothing was run."}
	problemUnavailable = Problem{Type: TypeBase + "store-unavailable", Status: http.StatusServiceUnavailable, Title: "The request cannot be taken now",
		Detail: "Without its records this server could run an operation twice, so it runs none. Send the same request again, with the same key."}
	problemClosing = Problem{Type: TypeBase + "shutting-down", Status: http.StatusServiceUnavailable, Title: "The server is shutting down",
		Detail: "The request was not run. Send the same request again, with the same key."}
	problemServer = Problem{Type: TypeBase + "server-error", Status: http.StatusInternalServerError, Title: "The server is set up wrongly",
		Detail: "Nothing was done. The cause is in the server's log."}
)

// problemOf maps the errors of the engine to problems: the table of
// docs/protocol.md.
func problemOf(err error) Problem {
	var p Problem
	switch {
	case errors.Is(err, kakutei.ErrMismatch):
		p = problemMismatch
	case errors.Is(err, kakutei.ErrInFlight), errors.Is(err, kakutei.ErrLeaseLost):
		p = problemInFlight
	case errors.Is(err, kakutei.ErrUncertain):
		p = problemUncertain
	case errors.Is(err, kakutei.ErrNotRetained):
		p = problemNotRetained
	case errors.Is(err, kakutei.ErrCorrupt):
		p = problemCorrupt
	case errors.Is(err, kakutei.ErrClosed):
		p = problemClosing
		p.RetryAfter = time.Second
	case errors.Is(err, kakutei.ErrInvalid), errors.Is(err, kakutei.ErrNested):
		p = problemServer
	default:
		p = problemUnavailable
		p.RetryAfter = time.Second
	}
	var e *kakutei.Error
	if errors.As(err, &e) && e.RetryAfter > 0 {
		p.RetryAfter = e.RetryAfter
	}
	p.Err = err
	return p
}

// WriteProblem writes p as application/problem+json. It is the default of
// [Options.ErrorFunc], and of use to one that adds to it.
func WriteProblem(w http.ResponseWriter, _ *http.Request, p Problem) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if p.RetryAfter > 0 {
		// Rounded down, so that it never says more than what is left of a lease.
		h.Set("Retry-After", strconv.Itoa(int(max(1, math.Floor(p.RetryAfter.Seconds())))))
	}
	body, err := json.Marshal(p)
	if err != nil { // texts and a number: cannot happen
		body = []byte("{}")
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	w.Write(body) //nolint:errcheck // the client is gone; there is nobody to tell
}
