package demo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"io"
	"net/http"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// naive is the usual idempotency layer, a cache of responses, written with care:
// stored responses survive a restart, belong to one account, and are given to
// the same request alone. Its order is the usual one, too: look the response up,
// run the handler if there is none, store what it answered. In between nobody
// owns the operation.
type naive struct {
	db   *sql.DB
	next http.Handler
}

const naiveSchema = `
CREATE TABLE IF NOT EXISTS responses (
	account         TEXT NOT NULL,
	idempotency_key TEXT NOT NULL,
	request_hash    BLOB NOT NULL,
	status          INTEGER NOT NULL,
	content_type    TEXT NOT NULL,
	body            BLOB NOT NULL,
	PRIMARY KEY (account, idempotency_key)
)`

// protectNaively puts the layer in front of handler.
func protectNaively(ctx context.Context, handler http.Handler, path string) (_ http.Handler, stop func(context.Context) error, err error) {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return nil, nil, err
	}
	db.SetMaxOpenConns(1) // SQLite has one writer
	if _, err := db.ExecContext(ctx, naiveSchema); err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return &naive{db: db, next: handler}, func(context.Context) error { return db.Close() }, nil
}

// ServeHTTP implements [http.Handler].
func (n *naive) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	account, err := accountOf(r)
	if err != nil {
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	if key == "" {
		http.Error(w, "Idempotency-Key is missing", http.StatusBadRequest)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, "the body cannot be read", http.StatusBadRequest)
		return
	}
	hash := sha256.Sum256(append([]byte(r.Method+" "+r.URL.Path+"\n"), body...))

	// 1. Look the response up.
	stored, storedHash, err := n.find(r.Context(), account, key)
	switch {
	case errors.Is(err, sql.ErrNoRows):
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	case !bytes.Equal(storedHash, hash[:]):
		http.Error(w, "the key was used with another request", http.StatusUnprocessableEntity)
		return
	default:
		w.Header().Set("Idempotent-Replayed", "true")
		stored.send(w)
		return
	}

	// 2. There is none: run the handler.
	response := &naiveResponse{status: http.StatusOK, header: make(http.Header)}
	r.Body = io.NopCloser(bytes.NewReader(body))
	n.next.ServeHTTP(response, r)

	// 3. Store what it answered, also if the client has left meanwhile. A 5xx is
	// not an answer.
	if response.status < http.StatusInternalServerError {
		if err := n.store(context.WithoutCancel(r.Context()), account, key, hash[:], response); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
	}
	response.send(w)
}

func (n *naive) find(ctx context.Context, account, key string) (*naiveResponse, []byte, error) {
	response, contentType, hash := &naiveResponse{header: make(http.Header)}, "", []byte(nil)
	err := n.db.QueryRowContext(ctx,
		`SELECT request_hash, status, content_type, body FROM responses WHERE account = ? AND idempotency_key = ?`,
		account, key).Scan(&hash, &response.status, &contentType, &response.body)
	response.header.Set("Content-Type", contentType)
	return response, hash, err
}

func (n *naive) store(ctx context.Context, account, key string, hash []byte, response *naiveResponse) error {
	_, err := n.db.ExecContext(ctx,
		`INSERT INTO responses (account, idempotency_key, request_hash, status, content_type, body) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT DO NOTHING`,
		account, key, hash, response.status, response.header.Get("Content-Type"), response.body)
	return err
}

// naiveResponse is a response that is stored before it is sent.
type naiveResponse struct {
	status int
	header http.Header
	body   []byte
}

// Header implements [http.ResponseWriter].
func (p *naiveResponse) Header() http.Header { return p.header }

// WriteHeader implements [http.ResponseWriter].
func (p *naiveResponse) WriteHeader(status int) { p.status = status }

// Write implements [io.Writer].
func (p *naiveResponse) Write(b []byte) (int, error) {
	p.body = append(p.body, b...)
	return len(b), nil
}

func (p *naiveResponse) send(w http.ResponseWriter) {
	w.Header().Set("Content-Type", p.header.Get("Content-Type"))
	w.WriteHeader(p.status)
	w.Write(p.body) //nolint:errcheck // the client is gone; it will ask again
}
