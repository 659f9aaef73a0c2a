package sqlitestore

// All SQL of the store. Writes run in one IMMEDIATE transaction for each group:
// SQLite lets one writer at a time in, and what such a transaction reads is
// current until its end. So a claim may read, decide and write, and needs no
// second look: nobody can complete in between.

// queryNow reads the database's clock. A transaction reads it once.
const queryNow = `SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)`

// queryRecord finds what is known about one operation: the live row, or else the
// result. Never both: a settlement removes the one and adds the other in one
// transaction. A result of a status that is not known is found as well: not to
// see it would be to run its operation again. Readers outside of a transaction
// see a snapshot, which is enough for decisions that change nothing.
const queryRecord = `
SELECT status, request_hash, attempt, owner, locked_until - CAST(unixepoch('subsec') * 1000 AS INTEGER),
       NULL, NULL, NULL, ''
FROM idempotency_keys WHERE scope = ?1 AND idempotency_key = ?2
UNION ALL
SELECT status, request_hash, attempt, owner, NULL, response_code, response_headers, response_body, omitted
FROM idempotency_results WHERE scope = ?1 AND idempotency_key = ?2 AND status <> 'FAILED'
LIMIT 1`

// queryInsert makes the live row of a first attempt if nothing is known about the
// operation, as queryRecord would find it, and changes nothing else. Nobody else
// can write before the transaction ends.
const queryInsert = `
INSERT INTO idempotency_keys (scope, idempotency_key, request_method, request_path, request_hash, status, attempt,
    owner, node, actor, trace_id, locked_until, created_at, claimed_at, updated_at)
SELECT ?1, ?2, ?3, ?4, ?5, 'PROCESSING', 1, ?6, ?7, ?8, ?9, ?11, ?10, ?10, ?10
WHERE NOT EXISTS (SELECT 1 FROM idempotency_results WHERE scope = ?1 AND idempotency_key = ?2 AND status <> 'FAILED')
ON CONFLICT DO NOTHING`

// queryTake gives the row to a new attempt, if it still is as it was read: the
// owner and the attempt are compared although the transaction excludes a
// change, so that the statement is safe by itself.
const queryTake = `
UPDATE idempotency_keys SET status = 'PROCESSING', attempt = ?3, owner = ?4, node = ?5, actor = ?6, trace_id = ?7,
    locked_until = ?9, claimed_at = ?8, updated_at = ?8
WHERE scope = ?1 AND idempotency_key = ?2 AND owner = ?10 AND attempt = ?11 AND status IN ('PROCESSING', 'FAILED')`

// queryHold sets an expired attempt UNCERTAIN, under the same condition.
const queryHold = `
UPDATE idempotency_keys SET status = 'UNCERTAIN', locked_until = NULL, updated_at = ?5
WHERE scope = ?1 AND idempotency_key = ?2 AND owner = ?3 AND attempt = ?4 AND status = 'PROCESSING'`

// queryRenew extends a lease. The fence is in the condition.
const queryRenew = `
UPDATE idempotency_keys SET locked_until = ?6, updated_at = ?5
WHERE scope = ?1 AND idempotency_key = ?2 AND owner = ?3 AND attempt = ?4 AND status = 'PROCESSING'`

// queryRecordResult writes the result of the attempt that holds the operation,
// and nothing if it does not hold it. %s is the table of the day.
const queryRecordResult = `
INSERT INTO %s (scope, idempotency_key, request_method, request_path, request_hash, status, attempt, owner, node,
    actor, trace_id, response_code, response_headers, response_body, omitted, created_at, claimed_at, completed_at)
SELECT scope, idempotency_key, request_method, request_path, request_hash, ?5, attempt, owner, node,
    actor, trace_id, ?6, ?7, ?8, ?9, created_at, claimed_at, ?10
FROM idempotency_keys
WHERE scope = ?1 AND idempotency_key = ?2 AND owner = ?3 AND attempt = ?4 AND status = 'PROCESSING'`

// queryRemove removes the live row of a settled operation, after its result was
// written in the same transaction.
const queryRemove = `
DELETE FROM idempotency_keys
WHERE scope = ?1 AND idempotency_key = ?2 AND owner = ?3 AND attempt = ?4 AND status = 'PROCESSING'`

// queryEnd ends an attempt whose operation is not settled: FAILED or UNCERTAIN.
const queryEnd = `
UPDATE idempotency_keys SET status = ?6, locked_until = NULL, updated_at = ?5
WHERE scope = ?1 AND idempotency_key = ?2 AND owner = ?3 AND attempt = ?4 AND status = 'PROCESSING'`

// queryDays lists the tables of the days. GLOB, since _ is a wildcard of LIKE.
const queryDays = `
SELECT name FROM sqlite_schema
WHERE type = 'table' AND name GLOB 'idempotency_results_[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]' ORDER BY name`

// queryCreateDay makes the table of a day. The unique index serves the look-ups,
// and refuses a second success of one operation whatever the code above does.
// Failed attempts are kept for the audit and not indexed.
const queryCreateDay = `
CREATE TABLE IF NOT EXISTS %[1]s (
    scope TEXT NOT NULL, idempotency_key TEXT NOT NULL, request_method TEXT NOT NULL, request_path TEXT NOT NULL,
    request_hash BLOB NOT NULL, status TEXT NOT NULL, attempt INTEGER NOT NULL, owner TEXT NOT NULL,
    node TEXT NOT NULL, actor TEXT NOT NULL, trace_id TEXT NOT NULL,
    response_code INTEGER NOT NULL, response_headers BLOB, response_body BLOB, omitted TEXT NOT NULL,
    created_at INTEGER NOT NULL, claimed_at INTEGER NOT NULL, completed_at INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS %[1]s_settled ON %[1]s (scope, idempotency_key) WHERE status <> 'FAILED'`

// queryDropDay drops a day whole.
const queryDropDay = `DROP TABLE %s`

// The view over the days is made anew whenever a day comes or goes, in the same
// transaction. Every process that has a statement on it prepared is told by
// SQLite that the schema has changed, so none can overlook a day.
const (
	queryDropView   = `DROP VIEW idempotency_results`
	queryCreateView = `CREATE VIEW idempotency_results AS %s`
	querySelectDay  = `SELECT scope, idempotency_key, request_method, request_path, request_hash, status, attempt, owner, node,
    actor, trace_id, response_code, response_headers, response_body, omitted, created_at, claimed_at, completed_at FROM %s`
	querySelectDays = `SELECT * FROM (%s)`
)

// queryForgetFailed removes failed operations that nobody came back for, a few
// at a time. Nothing that is held or uncertain matches.
const queryForgetFailed = `
DELETE FROM idempotency_keys WHERE (scope, idempotency_key) IN (
    SELECT scope, idempotency_key FROM idempotency_keys WHERE status = 'FAILED' AND updated_at < ?1 LIMIT 500)
AND status = 'FAILED' AND updated_at < ?1`

// queryWritable changes nothing, and fails where nothing can be changed.
const queryWritable = `DELETE FROM idempotency_keys WHERE 0`

// queryProbe finds out at start whether the file is a database that can be read.
const queryProbe = `SELECT count(*) FROM sqlite_schema`
