-- One row for each operation that is not settled: who may run now. Small and hot; its rows live for as long as their
-- operations run, so it is vacuumed often, without pauses.
CREATE TABLE {{keys}} (
    scope           text        COLLATE "C" NOT NULL,
    idempotency_key text        COLLATE "C" NOT NULL,
    request_method  text        NOT NULL,
    request_path    text        NOT NULL,
    request_hash    bytea       NOT NULL,
    status          text        COLLATE "C" NOT NULL CHECK (status IN ('PROCESSING', 'FAILED', 'UNCERTAIN')),
    attempt         bigint      NOT NULL CHECK (attempt >= 1),
    owner           text        COLLATE "C" NOT NULL,
    node            text        NOT NULL,
    actor           text        NOT NULL,
    trace_id        text        NOT NULL,
    locked_until    timestamptz,
    created_at      timestamptz NOT NULL,
    claimed_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    PRIMARY KEY (scope, idempotency_key),
    -- A lease that never ends, or that ended before it began, would block a key for ever or let two run.
    CHECK (status <> 'PROCESSING' OR (locked_until IS NOT NULL
        AND locked_until > updated_at AND locked_until <= updated_at + interval '24 hours'))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000);

-- Retention looks for failed operations that nobody came back for.
CREATE INDEX {{keys_failed}} ON {{keys}} (updated_at) WHERE status = 'FAILED';

-- What happened: one row for each attempt that ended, partitioned by the day of completion in UTC. Never updated, never
-- deleted from; days are dropped whole.
CREATE TABLE {{results}} (
    scope            text        COLLATE "C" NOT NULL,
    idempotency_key  text        COLLATE "C" NOT NULL,
    request_method   text        NOT NULL,
    request_path     text        NOT NULL,
    request_hash     bytea       NOT NULL,
    status           text        COLLATE "C" NOT NULL,
    attempt          bigint      NOT NULL,
    owner            text        COLLATE "C" NOT NULL,
    node             text        NOT NULL,
    actor            text        NOT NULL,
    trace_id         text        NOT NULL,
    response_code    integer     NOT NULL,
    response_headers bytea       NOT NULL,
    response_body    bytea       NOT NULL,
    omitted          text        NOT NULL,
    created_at       timestamptz NOT NULL,
    claimed_at       timestamptz NOT NULL,
    completed_at     timestamptz NOT NULL
) PARTITION BY RANGE (completed_at);

-- Serves every look-up. It cannot be unique, since it does not hold the day: that an operation succeeds once is the work
-- of {{keys}}.
CREATE INDEX {{results_settled}} ON {{results}} (scope, idempotency_key) WHERE status <> 'FAILED';

-- One row while a process makes or drops partitions, so that only one does at a time.
CREATE TABLE {{maintenance}} (
    name         text COLLATE "C" PRIMARY KEY,
    owner        text        NOT NULL,
    locked_until timestamptz NOT NULL
);
