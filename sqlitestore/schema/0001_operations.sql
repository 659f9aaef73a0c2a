-- +goose Up

-- One row for each operation that is not settled: who may run now. Small and hot.
CREATE TABLE idempotency_keys (
    scope           TEXT    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    request_method  TEXT    NOT NULL,
    request_path    TEXT    NOT NULL,
    request_hash    BLOB    NOT NULL,
    status          TEXT    NOT NULL CHECK (status IN ('PROCESSING', 'FAILED', 'UNCERTAIN')),
    attempt         INTEGER NOT NULL CHECK (attempt >= 1),
    owner           TEXT    NOT NULL,
    node            TEXT    NOT NULL,
    actor           TEXT    NOT NULL,
    trace_id        TEXT    NOT NULL,
    locked_until    INTEGER,          -- milliseconds since 1970, as all times here
    created_at      INTEGER NOT NULL, -- the first claim of the operation
    claimed_at      INTEGER NOT NULL, -- the claim of this attempt
    updated_at      INTEGER NOT NULL,
    PRIMARY KEY (scope, idempotency_key),
    -- A lease that never ends, or that ended before it began, would block a key
    -- for ever or let two run: neither can be written.
    CHECK (status <> 'PROCESSING' OR (locked_until IS NOT NULL
        AND locked_until > updated_at AND locked_until <= updated_at + 86400000))
) STRICT, WITHOUT ROWID;

-- Retention looks for failed operations that nobody came back for.
CREATE INDEX idempotency_keys_failed ON idempotency_keys (updated_at) WHERE status = 'FAILED';

-- What happened: one table for each day of completion, made as days come and
-- dropped whole; this view is made anew with them, and every reader goes
-- through it.
CREATE VIEW idempotency_results AS
SELECT '' AS scope, '' AS idempotency_key, '' AS request_method, '' AS request_path, x'' AS request_hash,
       '' AS status, 0 AS attempt, '' AS owner, '' AS node, '' AS actor, '' AS trace_id,
       0 AS response_code, x'' AS response_headers, x'' AS response_body, '' AS omitted,
       0 AS created_at, 0 AS claimed_at, 0 AS completed_at
WHERE 0;
