package pgstore

// All SQL of the store, with the names of the tables in braces. Each group of
// statements runs in one READ COMMITTED transaction, so that every statement
// has a snapshot of its own, whatever the default of database or role.

// querySettings makes the statements of this transaction use the primary key and
// nothing else. The tables are often empty when a plan is made, and a plan that
// reads an empty table as a whole is kept when the table is full of dead rows.
// lock_timeout bounds how long a key that somebody's transaction holds can hold
// up a batch.
const querySettings = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true),
    set_config('plan_cache_mode', 'force_generic_plan', true), set_config('lock_timeout', '500ms', true)`

// columnsResult and columnsKey are the columns of a record, from either table,
// which the status begins with: success belongs into the one, all else into the other.
const (
	columnsResult = `'r' || r.status AS status, r.request_hash, r.attempt, r.owner, 0::bigint AS left_ms, r.response_code, r.response_headers, r.response_body, r.omitted`
	columnsKey    = `'k' || k.status, k.request_hash, k.attempt, k.owner,
        coalesce((extract(epoch FROM k.locked_until - clock_timestamp()) * 1000)::bigint, 1000) AS left_ms,
        0, ''::bytea, ''::bytea, ''`
	// findResult and findKey look for the record of an item c; at most one row
	// each. A result of a status that is not known is found as well: not to see
	// it would be to run its operation again. LATERAL with LIMIT leaves the planner no way but the index.
	findResult = `CROSS JOIN LATERAL (SELECT * FROM {{results}} r
        WHERE r.scope = c.scope AND r.idempotency_key = c.idempotency_key AND r.status <> 'FAILED' LIMIT 1) r`
	findKey = `CROSS JOIN LATERAL (SELECT * FROM {{keys}} k
        WHERE k.scope = c.scope AND k.idempotency_key = c.idempotency_key LIMIT 1) k`
)

// queryLook finds records. It locks nothing. A settlement that commits during
// the statement is seen as a whole or not at all: both tables are read in one
// snapshot.
const queryLook = `
WITH c AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS c(scope, idempotency_key, i))
SELECT c.i, ` + columnsResult + ` FROM c ` + findResult + `
UNION ALL
SELECT c.i, ` + columnsKey + ` FROM c ` + findKey

// queryClaim looks, and inserts a row for each item of which nothing was found.
// Who is not inserted after all (another claim came first) gets no row back and
// starts again. Rows are inserted in the order of their keys, so that two
// batches that share keys cannot wait for each other.
const queryClaim = `
WITH c AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::text[],
        $9::text[], $10::bigint[]) WITH ORDINALITY
        AS c(scope, idempotency_key, request_method, request_path, request_hash, owner, node, actor, trace_id, lease_ms, i)),
found AS MATERIALIZED (
    SELECT c.i, ` + columnsResult + ` FROM c ` + findResult + `
    UNION ALL
    SELECT c.i, ` + columnsKey + ` FROM c ` + findKey + `),
inserted AS (
    INSERT INTO {{keys}} (scope, idempotency_key, request_method, request_path, request_hash, status, attempt, owner,
        node, actor, trace_id, locked_until, created_at, claimed_at, updated_at)
    SELECT c.scope, c.idempotency_key, c.request_method, c.request_path, c.request_hash, 'PROCESSING', 1, c.owner,
        c.node, c.actor, c.trace_id, t.now + c.lease_ms * interval '1 millisecond', t.now, t.now, t.now
    FROM c, (SELECT clock_timestamp() AS now) t
    WHERE NOT EXISTS (SELECT FROM found WHERE found.i = c.i)
    ORDER BY c.scope, c.idempotency_key
    ON CONFLICT (scope, idempotency_key) DO NOTHING
    RETURNING scope, idempotency_key, owner)
SELECT * FROM found
UNION ALL
SELECT c.i, NULL, ''::bytea, 1, c.owner, 0, 0, ''::bytea, ''::bytea, '' 
FROM c JOIN inserted USING (scope, idempotency_key, owner)`

// querySecondLook follows queryClaim in the same transaction, with a later
// snapshot. A settlement removes the key and adds the result in one commit, so
// one that freed the key for our insert is visible now, although the first look
// missed it. Then the row is withdrawn, and the result is the answer.
const querySecondLook = `
WITH c AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS c(scope, idempotency_key, owner, i)),
late AS MATERIALIZED (
    SELECT c.i, c.scope, c.idempotency_key, ` + columnsResult + `
    FROM c ` + findKey + ` ` + findResult + ` WHERE k.owner = c.owner),
withdrawn AS (
    DELETE FROM {{keys}} k USING late WHERE k.scope = late.scope AND k.idempotency_key = late.idempotency_key)
SELECT i, status, request_hash, attempt, owner, left_ms, response_code, response_headers, response_body, omitted FROM late`

// queryTake gives rows to new attempts, if they still are as they were read and
// an unfinished lease is still over. A row that a transaction has locked (its
// settlement is about to commit) is left alone.
const queryTake = `
WITH c AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[],
        $9::text[], $10::bigint[]) WITH ORDINALITY
        AS c(scope, idempotency_key, attempt, owner, node, actor, trace_id, lease_ms, old_owner, old_attempt, i)),
free AS MATERIALIZED (
    SELECT c.*, k.now FROM c CROSS JOIN LATERAL (SELECT clock_timestamp() AS now FROM {{keys}} k
        WHERE k.scope = c.scope AND k.idempotency_key = c.idempotency_key AND k.owner = c.old_owner AND k.attempt = c.old_attempt
            AND (k.status = 'FAILED' OR k.status = 'PROCESSING' AND k.locked_until <= clock_timestamp())
        LIMIT 1 FOR UPDATE SKIP LOCKED) k)
UPDATE {{keys}} k SET status = 'PROCESSING', attempt = f.attempt, owner = f.owner, node = f.node, actor = f.actor,
    trace_id = f.trace_id, locked_until = f.now + f.lease_ms * interval '1 millisecond', claimed_at = f.now, updated_at = f.now
FROM free f WHERE k.scope = f.scope AND k.idempotency_key = f.idempotency_key AND k.owner = f.old_owner AND k.attempt = f.old_attempt
RETURNING f.i`

// queryHold sets expired attempts UNCERTAIN, under the same conditions.
const queryHold = `
WITH c AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) WITH ORDINALITY
        AS c(scope, idempotency_key, owner, attempt, i)),
free AS MATERIALIZED (
    SELECT c.* FROM c CROSS JOIN LATERAL (SELECT FROM {{keys}} k
        WHERE k.scope = c.scope AND k.idempotency_key = c.idempotency_key AND k.owner = c.owner AND k.attempt = c.attempt
            AND k.status = 'PROCESSING' AND k.locked_until <= clock_timestamp()
        LIMIT 1 FOR UPDATE SKIP LOCKED) k)
UPDATE {{keys}} k SET status = 'UNCERTAIN', locked_until = NULL, updated_at = clock_timestamp()
FROM free f WHERE k.scope = f.scope AND k.idempotency_key = f.idempotency_key AND k.owner = f.owner AND k.attempt = f.attempt
RETURNING f.i`

// queryRenew extends leases, and returns what was extended. A row that is locked
// is left out, so that it does not hold up the others: see queryRenewWait.
const queryRenew = `
WITH c AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[]) WITH ORDINALITY
        AS c(scope, idempotency_key, owner, attempt, lease_ms, i)),
free AS MATERIALIZED (
    SELECT c.*, k.now FROM c CROSS JOIN LATERAL (SELECT clock_timestamp() AS now FROM {{keys}} k
        WHERE k.scope = c.scope AND k.idempotency_key = c.idempotency_key AND k.owner = c.owner AND k.attempt = c.attempt
            AND k.status = 'PROCESSING'
        LIMIT 1 FOR UPDATE SKIP LOCKED) k)
UPDATE {{keys}} k SET locked_until = f.now + f.lease_ms * interval '1 millisecond', updated_at = f.now
FROM free f WHERE k.scope = f.scope AND k.idempotency_key = f.idempotency_key AND k.owner = f.owner AND k.attempt = f.attempt
RETURNING f.i`

// queryRenewWait extends one lease, and waits for whoever has its row locked: a
// takeover or a renewal for a moment, or a transaction that settles or fences the
// attempt for as long as it is open.
const queryRenewWait = `
UPDATE {{keys}} k SET locked_until = t.now + $5 * interval '1 millisecond', updated_at = t.now
FROM (SELECT clock_timestamp() AS now) t
WHERE k.scope = $1 AND k.idempotency_key = $2 AND k.owner = $3 AND k.attempt = $4 AND k.status = 'PROCESSING'
RETURNING 1::bigint`

// querySettle ends attempts as SUCCEEDED: it removes the live rows that the
// attempts hold, and records the results, in one statement.
const querySettle = `
WITH c AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::integer[], $6::bytea[], $7::bytea[], $8::text[])
        WITH ORDINALITY AS c(scope, idempotency_key, owner, attempt, code, headers, body, omitted, i)),
gone AS (
    DELETE FROM {{keys}} k USING c
    WHERE k.scope = c.scope AND k.idempotency_key = c.idempotency_key AND k.owner = c.owner AND k.attempt = c.attempt
        AND k.status = 'PROCESSING'
    RETURNING c.i, k.*, c.code, c.headers, c.body, c.omitted),
recorded AS (
    INSERT INTO {{results}} (scope, idempotency_key, request_method, request_path, request_hash, status, attempt, owner,
        node, actor, trace_id, response_code, response_headers, response_body, omitted, created_at, claimed_at, completed_at)
    SELECT scope, idempotency_key, request_method, request_path, request_hash, 'SUCCEEDED', attempt, owner,
        node, actor, trace_id, code, headers, body, omitted, created_at, claimed_at, clock_timestamp() FROM gone)
SELECT i FROM gone`

// queryEnd ends attempts as FAILED or UNCERTAIN: the live row stays. A failed
// attempt is recorded for the audit; an uncertain one has not ended.
const queryEnd = `
WITH c AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::integer[], $6::text[])
        WITH ORDINALITY AS c(scope, idempotency_key, owner, attempt, code, status, i)),
ended AS (
    UPDATE {{keys}} k SET status = c.status, locked_until = NULL, updated_at = clock_timestamp() FROM c
    WHERE k.scope = c.scope AND k.idempotency_key = c.idempotency_key AND k.owner = c.owner AND k.attempt = c.attempt
        AND k.status = 'PROCESSING'
    RETURNING c.i, k.*, c.code),
recorded AS (
    INSERT INTO {{results}} (scope, idempotency_key, request_method, request_path, request_hash, status, attempt, owner,
        node, actor, trace_id, response_code, response_headers, response_body, omitted, created_at, claimed_at, completed_at)
    SELECT scope, idempotency_key, request_method, request_path, request_hash, 'FAILED', attempt, owner,
        node, actor, trace_id, code, '', '', '', created_at, claimed_at, clock_timestamp() FROM ended WHERE status = 'FAILED')
SELECT i FROM ended`

// queryFence tells whether an attempt holds its operation, and keeps it so until
// the transaction ends: takeovers skip the locked row.
const queryFence = `SELECT FROM {{keys}} WHERE scope = $1 AND idempotency_key = $2 AND owner = $3 AND attempt = $4
    AND status = 'PROCESSING' FOR UPDATE`

// Partitions. Their bounds are days in UTC, whatever the time zone of the
// session. A partition is made as a table of its own and then attached, which
// locks out nobody; CREATE … PARTITION OF would lock the parent.
const (
	queryNow          = `SELECT clock_timestamp()`
	queryPartitions   = `SELECT c.relname, i.inhdetachpending FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = to_regclass($1) ORDER BY 1`
	queryCreateTable  = `CREATE TABLE IF NOT EXISTS %s (LIKE {{results}} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)`
	queryAttach       = `ALTER TABLE {{results}} ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')`
	queryDetach       = `ALTER TABLE {{results}} DETACH PARTITION %s CONCURRENTLY`
	queryDetachFinish = `ALTER TABLE {{results}} DETACH PARTITION %s FINALIZE`
	queryDropTable    = `DROP TABLE IF EXISTS %s`
	queryLeftovers    = `SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relname LIKE $2 ESCAPE '\' AND NOT c.relispartition ORDER BY 1`
)

// queryMaintain takes the right to make or drop partitions, for a limited time:
// a process that dies in the middle must not stop all others for ever.
const (
	queryMaintain = `INSERT INTO {{maintenance}} (name, owner, locked_until) VALUES ('partitions', $1, clock_timestamp() + interval '10 minutes')
    ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, locked_until = excluded.locked_until
    WHERE {{maintenance}}.locked_until <= clock_timestamp()`
	queryMaintained = `DELETE FROM {{maintenance}} WHERE name = 'partitions' AND owner = $1`
)

// queryForgetFailed removes failed operations that nobody came back for, a few
// at a time and none that anybody is about to claim. Nothing that is held or
// uncertain matches.
const queryForgetFailed = `
DELETE FROM {{keys}} WHERE (scope, idempotency_key) IN (
    SELECT scope, idempotency_key FROM {{keys}} WHERE status = 'FAILED' AND updated_at < clock_timestamp() - $1 * interval '1 millisecond'
    ORDER BY scope, idempotency_key LIMIT 500 FOR UPDATE SKIP LOCKED)
AND status = 'FAILED'`

// The version of the schema, in the table that goose keeps.
const (
	queryVersion      = `SELECT coalesce(max(version_id), 0) FROM %s WHERE is_applied`
	queryVersionTable = `CREATE TABLE IF NOT EXISTS %s (id integer PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY,
    version_id bigint NOT NULL, is_applied boolean NOT NULL, tstamp timestamp NOT NULL DEFAULT now())`
	queryRecordVersion = `INSERT INTO %s (version_id, is_applied) VALUES (%d, true)`
)
