-- enqueue one: A call, in the caller's transaction.
INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, payload, redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, created_at, due_at,
    retries, schema_version)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, clock_timestamp(), clock_timestamp(), 0, 1);

-- enqueue many: Calls of a bulk or a group, here two.
INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, payload, redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, created_at, due_at,
    retries, schema_version)
SELECT task_id, task_name, args, kwargs, options, decode(payload, 'hex'), redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, clock_timestamp(),
    clock_timestamp(), 0, 1
FROM json_to_recordset(%s::json) AS row(task_id text, task_name text, args text, kwargs text,
    options text, payload text, redacted_args text, redacted_kwargs text, sentry_trace_id text,
    sentry_baggage text, structlog_context text, eta text, countdown text);

-- enqueue one, held: A call with an eta or a countdown: due later.
INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, payload, redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, created_at, due_at,
    eta, retries, schema_version)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, clock_timestamp(),
    greatest(clock_timestamp(), coalesce(%s::timestamp AT TIME ZONE 'UTC',
    clock_timestamp() + %s::float8 * interval '1 second')),
    coalesce(%s::timestamp AT TIME ZONE 'UTC',
    clock_timestamp() + %s::float8 * interval '1 second'), 0, 1);

-- enqueue many, held: Calls of which at least one is due later, here two.
INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, payload, redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, created_at, due_at,
    eta, retries, schema_version)
SELECT task_id, task_name, args, kwargs, options, decode(payload, 'hex'), redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, clock_timestamp(),
    greatest(clock_timestamp(), coalesce(eta::timestamp AT TIME ZONE 'UTC',
    clock_timestamp() + countdown::float8 * interval '1 second')),
    coalesce(eta::timestamp AT TIME ZONE 'UTC',
    clock_timestamp() + countdown::float8 * interval '1 second'), 0, 1
FROM json_to_recordset(%s::json) AS row(task_id text, task_name text, args text, kwargs text,
    options text, payload text, redacted_args text, redacted_kwargs text, sentry_trace_id text,
    sentry_baggage text, structlog_context text, eta text, countdown text);

-- enqueue and notify: A call that wakes the relay.
WITH rows AS (
    INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, payload, redacted_args,
        redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, created_at, due_at,
        retries, schema_version)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, clock_timestamp(), clock_timestamp(), 0, 1)
)
SELECT pg_notify('celery_outbox', '');

-- enqueue and notify, held: Wakes the relay if the call is due soon.
WITH rows AS (
    INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, payload, redacted_args,
        redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, created_at, due_at,
        eta, retries, schema_version)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, clock_timestamp(),
        greatest(clock_timestamp(), coalesce(%s::timestamp AT TIME ZONE 'UTC',
        clock_timestamp() + %s::float8 * interval '1 second')),
        coalesce(%s::timestamp AT TIME ZONE 'UTC',
        clock_timestamp() + %s::float8 * interval '1 second'), 0, 1)
    RETURNING due_at
)
SELECT pg_notify('celery_outbox', 'held')
FROM rows
WHERE due_at < clock_timestamp() + interval '1.0 second'
LIMIT 1;

-- notify: Wakes the relay after further calls.
SELECT pg_notify('celery_outbox', 'held');

-- enqueue with a key: A call whose key is free.
INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, payload, redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, outbox_key, created_at,
    due_at, retries, schema_version)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, clock_timestamp(), clock_timestamp(), 0,
    1)
ON CONFLICT DO NOTHING
RETURNING outbox_key;

-- enqueue with a key, kept: A call with this key waits, and is locked.
INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, payload, redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, outbox_key, created_at,
    due_at, retries, schema_version)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, clock_timestamp(), clock_timestamp(), 0,
    1)
ON CONFLICT DO NOTHING
RETURNING outbox_key;
SAVEPOINT one;
SELECT outbox_key, task_id, extract(epoch from due_at - statement_timestamp())::float8
FROM celery_outbox
WHERE outbox_key = ANY(%s)
  AND due_at IS NOT NULL
  AND claimed_by IS NULL
ORDER BY outbox_key FOR KEY SHARE;
RELEASE SAVEPOINT one;

-- enqueue with a key, replaced: The newest call takes its place.
INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, payload, redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, outbox_key, created_at,
    due_at, retries, schema_version)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, clock_timestamp(), clock_timestamp(), 0,
    1)
ON CONFLICT DO NOTHING
RETURNING outbox_key;
SAVEPOINT one;
SELECT outbox_key, task_id, extract(epoch from due_at - statement_timestamp())::float8
FROM celery_outbox
WHERE outbox_key = ANY(%s)
  AND due_at IS NOT NULL
  AND claimed_by IS NULL
ORDER BY outbox_key FOR NO KEY UPDATE;
RELEASE SAVEPOINT one;
UPDATE celery_outbox
SET task_id = %s, task_name = %s, args = %s, kwargs = %s, options = %s, payload = %s,
    redacted_args = %s, redacted_kwargs = %s, sentry_trace_id = %s, sentry_baggage = %s,
    structlog_context = %s, created_at = clock_timestamp(), due_at = greatest(clock_timestamp(),
    coalesce(%s::timestamp AT TIME ZONE 'UTC',
    clock_timestamp() + %s::float8 * interval '1 second')),
    eta = coalesce(%s::timestamp AT TIME ZONE 'UTC',
    clock_timestamp() + %s::float8 * interval '1 second'), retries = 0, schema_version = 1,
    updated_at = NULL, last_error = NULL, claimed_by = NULL, claimed_until = NULL
WHERE outbox_key = %s;

-- free a key: Of a row that is in flight or published.
UPDATE celery_outbox
SET outbox_key = NULL
WHERE outbox_key = ANY(%s)
  AND NOT (due_at IS NOT NULL AND claimed_by IS NULL);

-- open session: The first statements of a relay's session.
SELECT is_pooled, set_config('enable_seqscan', 'off', is_pooled),
    set_config('enable_bitmapscan', 'off', is_pooled),
    set_config('enable_sort', 'off', is_pooled), set_config('jit', 'off', is_pooled),
    CASE WHEN current_setting('lock_timeout') = '0' THEN set_config('lock_timeout', '20s', is_pooled) END
FROM (SELECT pg_backend_pid() <> %s AS is_pooled) AS session;

-- listen: Before the first claim of a session.
LISTEN celery_outbox;

-- claim: Lease due rows; a full scan of the due index.
WITH due AS MATERIALIZED (
    SELECT id AS due_id,
        octet_length(args)::bigint + octet_length(kwargs) + octet_length(options) + coalesce(octet_length(payload), 0) AS size,
        coalesce(claimed_by <> %s, false) AS orphaned
    FROM celery_outbox
    WHERE due_at <= statement_timestamp()
      AND (claimed_until IS NULL OR claimed_until < statement_timestamp())
      AND schema_version IN (%s)
    ORDER BY due_at, id
    LIMIT %s
    FOR UPDATE SKIP LOCKED
), summed AS (
    SELECT *, sum(size) OVER (ROWS UNBOUNDED PRECEDING) AS total
    FROM due
), fitting AS MATERIALIZED (
    SELECT due_id, orphaned, size > %s AS oversized
    FROM summed
    WHERE total <= %s OR total = size
), no_disk_wait AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
)
UPDATE celery_outbox
SET claimed_by = %s, claimed_until = statement_timestamp() + %s * interval '1 second'
FROM fitting, no_disk_wait
WHERE id = due_id
RETURNING extract(epoch from due_at)::float8, id, task_id, task_name,
    CASE WHEN NOT oversized THEN args ELSE '' END,
    CASE WHEN NOT oversized THEN kwargs ELSE '' END,
    CASE WHEN NOT oversized THEN options ELSE '' END, CASE WHEN NOT oversized THEN payload END,
    retries, schema_version, sentry_trace_id, sentry_baggage, structlog_context,
    to_char(eta AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
    extract(epoch from statement_timestamp() - created_at)::float8,
    coalesce(extract(epoch from greatest(eta, created_at) - created_at), 0)::float8,
    updated_at IS NOT NULL, orphaned, oversized;

-- claim from watermark: Lease due rows, from where the last claim ended.
WITH due AS MATERIALIZED (
    SELECT id AS due_id,
        octet_length(args)::bigint + octet_length(kwargs) + octet_length(options) + coalesce(octet_length(payload), 0) AS size,
        coalesce(claimed_by <> %s, false) AS orphaned
    FROM celery_outbox
    WHERE due_at >= to_timestamp(%s - 1)
      AND due_at >= to_timestamp(%s)
      AND due_at <= statement_timestamp()
      AND (claimed_until IS NULL OR claimed_until < statement_timestamp())
      AND schema_version IN (%s)
    ORDER BY due_at, id
    LIMIT %s
    FOR UPDATE SKIP LOCKED
), summed AS (
    SELECT *, sum(size) OVER (ROWS UNBOUNDED PRECEDING) AS total
    FROM due
), fitting AS MATERIALIZED (
    SELECT due_id, orphaned, size > %s AS oversized
    FROM summed
    WHERE total <= %s OR total = size
), no_disk_wait AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
)
UPDATE celery_outbox
SET claimed_by = %s, claimed_until = statement_timestamp() + %s * interval '1 second'
FROM fitting, no_disk_wait
WHERE id = due_id
RETURNING extract(epoch from due_at)::float8, id, task_id, task_name,
    CASE WHEN NOT oversized THEN args ELSE '' END,
    CASE WHEN NOT oversized THEN kwargs ELSE '' END,
    CASE WHEN NOT oversized THEN options ELSE '' END, CASE WHEN NOT oversized THEN payload END,
    retries, schema_version, sentry_trace_id, sentry_baggage, structlog_context,
    to_char(eta AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
    extract(epoch from statement_timestamp() - created_at)::float8,
    coalesce(extract(epoch from greatest(eta, created_at) - created_at), 0)::float8,
    updated_at IS NOT NULL, orphaned, oversized;

-- claim and adopt: A claim that may take its own leased rows.
WITH due AS MATERIALIZED (
    SELECT id AS due_id,
        octet_length(args)::bigint + octet_length(kwargs) + octet_length(options) + coalesce(octet_length(payload), 0) AS size,
        coalesce(claimed_by <> %s, false) AS orphaned
    FROM celery_outbox
    WHERE due_at <= statement_timestamp()
      AND ((claimed_until IS NULL OR claimed_until < statement_timestamp()) OR claimed_by = %s)
      AND schema_version IN (%s)
    ORDER BY due_at, id
    LIMIT %s
    FOR UPDATE SKIP LOCKED
), summed AS (
    SELECT *, sum(size) OVER (ROWS UNBOUNDED PRECEDING) AS total
    FROM due
), fitting AS MATERIALIZED (
    SELECT due_id, orphaned, size > %s AS oversized
    FROM summed
    WHERE total <= %s OR total = size
), no_disk_wait AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
)
UPDATE celery_outbox
SET claimed_by = %s, claimed_until = statement_timestamp() + %s * interval '1 second'
FROM fitting, no_disk_wait
WHERE id = due_id
RETURNING extract(epoch from due_at)::float8, id, task_id, task_name,
    CASE WHEN NOT oversized THEN args ELSE '' END,
    CASE WHEN NOT oversized THEN kwargs ELSE '' END,
    CASE WHEN NOT oversized THEN options ELSE '' END, CASE WHEN NOT oversized THEN payload END,
    retries, schema_version, sentry_trace_id, sentry_baggage, structlog_context,
    to_char(eta AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
    extract(epoch from statement_timestamp() - created_at)::float8,
    coalesce(extract(epoch from greatest(eta, created_at) - created_at), 0)::float8,
    updated_at IS NOT NULL, orphaned, oversized;

-- claim without orphans: A claim that takes over no expired lease, after the database was away.
WITH due AS MATERIALIZED (
    SELECT id AS due_id,
        octet_length(args)::bigint + octet_length(kwargs) + octet_length(options) + coalesce(octet_length(payload), 0) AS size,
        coalesce(claimed_by <> %s, false) AS orphaned
    FROM celery_outbox
    WHERE due_at >= to_timestamp(%s - 1)
      AND due_at >= to_timestamp(%s)
      AND due_at <= statement_timestamp()
      AND (claimed_until IS NULL OR claimed_until < statement_timestamp())
      AND (claimed_until IS NULL OR claimed_by = %s)
      AND schema_version IN (%s)
    ORDER BY due_at, id
    LIMIT %s
    FOR UPDATE SKIP LOCKED
), summed AS (
    SELECT *, sum(size) OVER (ROWS UNBOUNDED PRECEDING) AS total
    FROM due
), fitting AS MATERIALIZED (
    SELECT due_id, orphaned, size > %s AS oversized
    FROM summed
    WHERE total <= %s OR total = size
), no_disk_wait AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
)
UPDATE celery_outbox
SET claimed_by = %s, claimed_until = statement_timestamp() + %s * interval '1 second'
FROM fitting, no_disk_wait
WHERE id = due_id
RETURNING extract(epoch from due_at)::float8, id, task_id, task_name,
    CASE WHEN NOT oversized THEN args ELSE '' END,
    CASE WHEN NOT oversized THEN kwargs ELSE '' END,
    CASE WHEN NOT oversized THEN options ELSE '' END, CASE WHEN NOT oversized THEN payload END,
    retries, schema_version, sentry_trace_id, sentry_baggage, structlog_context,
    to_char(eta AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
    extract(epoch from statement_timestamp() - created_at)::float8,
    coalesce(extract(epoch from greatest(eta, created_at) - created_at), 0)::float8,
    updated_at IS NOT NULL, orphaned, oversized;

-- begin attempt: Count an attempt before it is made; then load a large message.
UPDATE celery_outbox
SET retries = %s, last_error = %s, updated_at = statement_timestamp()
WHERE id = ANY(%s)
  AND claimed_by = %s;
SELECT args, kwargs, options, payload
FROM celery_outbox
WHERE id = %s
  AND claimed_by = %s;

-- settle published: Delete published rows.
DELETE FROM celery_outbox
WHERE id = ANY(%s)
  AND (claimed_by = %s OR (claimed_by IS NULL OR claimed_by = '') AND outbox_key IS NULL)
  AND due_at IS NOT NULL;

-- settle published, kept: Keep published rows.
BEGIN;
UPDATE celery_outbox
SET published_at = statement_timestamp(), updated_at = statement_timestamp(), due_at = NULL,
    claimed_by = NULL, claimed_until = NULL, retries = %s, last_error = NULL, outbox_key = NULL
WHERE id = ANY(%s)
  AND (claimed_by = %s OR (claimed_by IS NULL OR claimed_by = '') AND outbox_key IS NULL)
  AND due_at IS NOT NULL;
COMMIT;

-- settle retry: A message failed.
BEGIN;
UPDATE celery_outbox
SET retries = %s, due_at = statement_timestamp() + %s * interval '1 second', last_error = %s,
    updated_at = statement_timestamp(), claimed_by = %s, claimed_until = NULL
WHERE id = ANY(%s)
  AND claimed_by = %s;
COMMIT;

-- settle deferred: The broker is away.
BEGIN;
UPDATE celery_outbox
SET retries = %s, due_at = statement_timestamp() + %s * interval '1 second', last_error = %s,
    updated_at = statement_timestamp(), claimed_by = %s, claimed_until = NULL
WHERE id = ANY(%s)
  AND claimed_by = %s;
COMMIT;

-- settle dead: Move to the dead letters.
BEGIN;
INSERT INTO celery_outbox_dead_letter (task_id, task_name, args, kwargs, options, payload,
    redacted_args, redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, eta,
    created_at, schema_version, retries, dead_at, failure_reason)
SELECT task_id, task_name, args, kwargs, options, payload, redacted_args, redacted_kwargs,
    sentry_trace_id, sentry_baggage, structlog_context, eta, created_at, schema_version, %s,
    statement_timestamp(), %s
FROM celery_outbox
WHERE id = ANY(%s)
  AND claimed_by = %s
FOR UPDATE;
DELETE FROM celery_outbox
WHERE id = ANY(%s)
  AND claimed_by = %s;
COMMIT;

-- settle expired: Delete held calls that expired.
BEGIN;
DELETE FROM celery_outbox
WHERE id = ANY(%s)
  AND claimed_by = %s;
COMMIT;

-- renew: A batch takes long; which rows it lost, if it lost any.
UPDATE celery_outbox
SET claimed_until = statement_timestamp() + %s * interval '1 second'
WHERE id = ANY(%s)
  AND claimed_by = %s;
SELECT id
FROM celery_outbox
WHERE id = ANY(%s)
  AND claimed_by = %s;

-- release: Give claimed rows back, due at once.
UPDATE celery_outbox
SET claimed_by = NULL, claimed_until = NULL
WHERE id = ANY(%s)
  AND claimed_by = %s;

-- next due: After a claim that found nothing: how long to wait.
SELECT extract(epoch from due_at - statement_timestamp())::float8
FROM celery_outbox
WHERE due_at > statement_timestamp() + %s * interval '1 second'
  AND (claimed_until IS NULL OR claimed_until < statement_timestamp())
ORDER BY due_at, id
LIMIT 1;

-- list scheduled: `celery outbox scheduled`.
SELECT destination
FROM celery_outbox_delivery
WHERE destination > %s
ORDER BY destination
LIMIT 1;
SELECT task_id, task_name,
    to_char(due_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
    extract(epoch from due_at - statement_timestamp())::float8,
    substr(coalesce(redacted_args, args), 1, %s),
    substr(coalesce(redacted_kwargs, kwargs), 1, %s)
FROM celery_outbox
WHERE due_at > statement_timestamp()
  AND due_at < '9999-01-01 00:00:00+00'
  AND (claimed_until IS NULL OR claimed_until < statement_timestamp())
  AND (updated_at IS NULL OR eta > statement_timestamp())
  AND task_name LIKE %s ESCAPE '!'
ORDER BY due_at, id
LIMIT %s;

-- reschedule: `app.outbox.reschedule()`, in the caller's transaction.
BEGIN;
SELECT id, task_id
FROM celery_outbox
WHERE task_id = ANY(%s)
  AND due_at IS NOT NULL
  AND (claimed_until IS NULL OR claimed_until < statement_timestamp());
SELECT id, task_id, claimed_by IS NULL AND updated_at IS NULL
FROM celery_outbox
WHERE id = ANY(%s)
  AND due_at IS NOT NULL
  AND (claimed_until IS NULL OR claimed_until < statement_timestamp())
ORDER BY id FOR NO KEY UPDATE;
UPDATE celery_outbox
SET eta = coalesce(%s::timestamp AT TIME ZONE 'UTC',
    clock_timestamp() + %s::float8 * interval '1 second'), due_at = greatest(clock_timestamp(),
    coalesce(%s::timestamp AT TIME ZONE 'UTC',
    clock_timestamp() + %s::float8 * interval '1 second'))
WHERE id = ANY(%s);
SELECT options, coalesce(extract(epoch from greatest(eta, created_at) - created_at), 0)::float8
FROM celery_outbox
WHERE id = ANY(%s);
SELECT pg_notify('celery_outbox', 'held');
COMMIT;

-- send now: `celery outbox send-now` and `app.outbox.send_now()`.
BEGIN;
SELECT id, task_id
FROM celery_outbox
WHERE task_id = ANY(%s)
  AND due_at IS NOT NULL
  AND (claimed_until IS NULL OR claimed_until < statement_timestamp());
SELECT id, task_id, claimed_by IS NULL AND updated_at IS NULL
FROM celery_outbox
WHERE id = ANY(%s)
  AND due_at IS NOT NULL
  AND (claimed_until IS NULL OR claimed_until < statement_timestamp())
ORDER BY id FOR NO KEY UPDATE;
UPDATE celery_outbox
SET eta = CASE WHEN eta > statement_timestamp() THEN statement_timestamp() ELSE eta END,
    due_at = statement_timestamp()
WHERE id = ANY(%s)
  AND due_at > statement_timestamp()
  AND due_at < '9999-01-01 00:00:00+00';
SELECT pg_notify('celery_outbox', '');
COMMIT;
BEGIN;
SELECT id, task_id
FROM celery_outbox_delivery
WHERE task_id = ANY(%s)
  AND due_at IS NOT NULL
  AND (claimed_until IS NULL OR claimed_until < statement_timestamp());
COMMIT;

-- cancel: `celery outbox cancel`, `revoke()` in the caller's transaction.
BEGIN;
SELECT id, task_id
FROM celery_outbox
WHERE task_id = ANY(%s)
  AND due_at IS NOT NULL
  AND (claimed_until IS NULL OR claimed_until < statement_timestamp());
SELECT id, task_id, claimed_by IS NULL AND updated_at IS NULL
FROM celery_outbox
WHERE id = ANY(%s)
  AND due_at IS NOT NULL
  AND (claimed_until IS NULL OR claimed_until < statement_timestamp())
ORDER BY id
FOR UPDATE;
DELETE FROM celery_outbox
WHERE id = ANY(%s);
COMMIT;
BEGIN;
SELECT id, task_id
FROM celery_outbox_delivery
WHERE task_id = ANY(%s)
  AND due_at IS NOT NULL
  AND (claimed_until IS NULL OR claimed_until < statement_timestamp());
COMMIT;

-- look: The first statement of each check-in: slots, members, pause.
SELECT relay_id, slot,
    CASE WHEN expires_at > statement_timestamp() AND expires_at < statement_timestamp() + CASE WHEN slot IS NULL THEN 21675.0 ELSE 75.0 END * interval '1 second' THEN 1 ELSE 0 END,
    -(extract(epoch from last_seen - statement_timestamp())::float8), standbys,
    CASE WHEN first_end < statement_timestamp() + -3600.0 * interval '1 second' OR last_end > statement_timestamp() + 21675.0 * interval '1 second' THEN 1 ELSE 0 END,
    reason, paused_by,
    -(extract(epoch from paused_at - statement_timestamp())::float8) AS paused_for
FROM (
    SELECT max(CASE WHEN seen_at <= statement_timestamp() AND state <> 'stopped' THEN seen_at END) AS last_seen,
        sum(CASE WHEN expires_at > statement_timestamp() AND state = 'standing by' AND relay_id <> %s THEN 1 ELSE 0 END) AS standbys,
        min(expires_at) AS first_end, max(expires_at) AS last_end
    FROM celery_outbox_relay
) AS fleet
LEFT JOIN celery_outbox_pause ON name = ''
LEFT JOIN celery_outbox_relay ON slot IS NOT NULL OR relay_id = %s;

-- first check-in: After the look; a new member takes a free slot.
INSERT INTO celery_outbox_relay (relay_id, started_at, worker, version, state, rate, counters,
    last_error, slot, seen_at, expires_at, turn_at)
VALUES (%s, statement_timestamp(), %s, %s, %s, %s, %s, %s, %s, statement_timestamp(),
    statement_timestamp() + %s * interval '1 second',
    statement_timestamp() + %s * interval '1 second');
UPDATE celery_outbox_relay
SET worker = %s, version = %s, state = %s, rate = %s, counters = %s, last_error = %s, slot = %s,
    seen_at = statement_timestamp(),
    expires_at = statement_timestamp() + %s * interval '1 second', turn_at = NULL
WHERE relay_id = %s;

-- check-in with a slot: After the look, every few seconds.
UPDATE celery_outbox_relay
SET worker = %s, version = %s, state = %s, rate = %s, counters = %s, last_error = %s, slot = %s,
    seen_at = statement_timestamp(),
    expires_at = statement_timestamp() + %s * interval '1 second', turn_at = NULL
WHERE relay_id = %s;

-- check-in without a slot: After the look; once per second, of all together.
SELECT min(CASE WHEN turn >= 0 AND (following IS NULL OR following > turn + 1.75) THEN turn END),
    sum(CASE WHEN turn < 0.05 OR seen > -0.05 THEN 1 ELSE 0 END) - 1
FROM (
    SELECT turn, seen, lead(turn) OVER (ORDER BY turn) AS following
    FROM (
        SELECT 0e0 AS turn, 0e0 AS seen UNION ALL
        SELECT extract(epoch from turn_at - statement_timestamp())::float8,
            extract(epoch from seen_at - statement_timestamp())::float8
        FROM celery_outbox_relay
        WHERE turn_at > statement_timestamp() + -0.05 * interval '1 second'
          AND expires_at > statement_timestamp()
          AND relay_id <> %s
    ) AS turns
) AS ordered;
UPDATE celery_outbox_relay
SET worker = %s, version = %s, state = %s, rate = %s, counters = %s, last_error = %s, slot = %s,
    seen_at = statement_timestamp(),
    expires_at = statement_timestamp() + %s * interval '1 second',
    turn_at = statement_timestamp() + %s * interval '1 second'
WHERE relay_id = %s;

-- check-in after a silence: After the look; those who were alive still are.
UPDATE celery_outbox_relay
SET expires_at = statement_timestamp() + %s * interval '1 second'
WHERE state <> 'stopped'
  AND expires_at > statement_timestamp() + %s * interval '1 second'
  AND expires_at < statement_timestamp() + %s * interval '1 second';
UPDATE celery_outbox_relay
SET worker = %s, version = %s, state = %s, rate = %s, counters = %s, last_error = %s, slot = %s,
    seen_at = statement_timestamp(),
    expires_at = statement_timestamp() + %s * interval '1 second', turn_at = NULL
WHERE relay_id = %s;

-- check-in in place of a dead member: After the look; old rows are deleted.
INSERT INTO celery_outbox_relay (relay_id, started_at, worker, version, state, rate, counters,
    last_error, slot, seen_at, expires_at, turn_at)
VALUES (%s, statement_timestamp(), %s, %s, %s, %s, %s, %s, %s, statement_timestamp(),
    statement_timestamp() + %s * interval '1 second',
    statement_timestamp() + %s * interval '1 second');
UPDATE celery_outbox_relay
SET slot = NULL
WHERE relay_id = %s
  AND slot = %s
  AND NOT (expires_at > statement_timestamp() AND expires_at < statement_timestamp() + CASE WHEN slot IS NULL THEN 21675.0 ELSE 75.0 END * interval '1 second');
UPDATE celery_outbox_relay
SET worker = %s, version = %s, state = %s, rate = %s, counters = %s, last_error = %s, slot = %s,
    seen_at = statement_timestamp(),
    expires_at = statement_timestamp() + %s * interval '1 second', turn_at = NULL
WHERE relay_id = %s;
DELETE FROM celery_outbox_relay
WHERE expires_at < statement_timestamp() + -3600.0 * interval '1 second' OR expires_at > statement_timestamp() + 21675.0 * interval '1 second';

-- check out: A relay stops, and learns whom to tell.
UPDATE celery_outbox_relay
SET state = 'stopped', slot = NULL, turn_at = NULL, seen_at = statement_timestamp(),
    expires_at = statement_timestamp()
WHERE relay_id = %s;
SELECT worker
FROM celery_outbox_relay
WHERE expires_at > statement_timestamp()
  AND expires_at < statement_timestamp() + CASE WHEN slot IS NULL THEN 21675.0 ELSE 75.0 END * interval '1 second'
  AND state = 'standing by'
ORDER BY seen_at DESC
LIMIT 3;

-- fleet: The members that `celery outbox status` and the admin show.
SELECT relay_id, worker, version, state, rate, counters, last_error, slot,
    -(extract(epoch from started_at - statement_timestamp())::float8),
    -(extract(epoch from seen_at - statement_timestamp())::float8),
    CASE WHEN expires_at > statement_timestamp() AND expires_at < statement_timestamp() + CASE WHEN slot IS NULL THEN 21675.0 ELSE 75.0 END * interval '1 second' THEN 1 ELSE 0 END
FROM celery_outbox_relay;
SELECT name, reason, paused_by,
    -(extract(epoch from paused_at - statement_timestamp())::float8) AS paused_for
FROM celery_outbox_pause;

-- pause: Of the outbox, by an operator.
UPDATE celery_outbox_pause
SET reason = %s, paused_by = %s
WHERE name = %s;
INSERT INTO celery_outbox_pause (reason, paused_by, name, paused_at)
VALUES (%s, %s, %s, statement_timestamp());

-- resume: The end of the pause.
DELETE FROM celery_outbox_pause
WHERE name = %s;

-- sample: The gauges.
SELECT count(*), sum(leased), sum(postponed), sum(late), max(overdue),
    max(CASE WHEN late = 1 THEN age END)
FROM (
    SELECT CASE WHEN claimed_until >= statement_timestamp() THEN 1 ELSE 0 END AS leased,
        CASE WHEN (claimed_until IS NULL OR claimed_until < statement_timestamp()) AND (updated_at IS NOT NULL AND (eta IS NULL OR eta <= statement_timestamp())) THEN 1 ELSE 0 END AS postponed,
        CASE WHEN due_at <= statement_timestamp() OR (updated_at IS NOT NULL AND (eta IS NULL OR eta <= statement_timestamp())) THEN 1 ELSE 0 END AS late,
        -(extract(epoch from due_at - statement_timestamp())::float8) AS overdue,
        extract(epoch from statement_timestamp() - created_at)::float8 - coalesce(extract(epoch from greatest(eta, created_at) - created_at), 0)::float8 AS age
    FROM celery_outbox
    WHERE due_at <= statement_timestamp()
    ORDER BY due_at, id
    LIMIT %s
) AS part;
SELECT count(*), sum(leased), sum(postponed), sum(late), max(overdue),
    max(CASE WHEN late = 1 THEN age END)
FROM (
    SELECT CASE WHEN claimed_until >= statement_timestamp() THEN 1 ELSE 0 END AS leased,
        CASE WHEN (claimed_until IS NULL OR claimed_until < statement_timestamp()) AND (updated_at IS NOT NULL AND (eta IS NULL OR eta <= statement_timestamp())) THEN 1 ELSE 0 END AS postponed,
        CASE WHEN due_at <= statement_timestamp() OR (updated_at IS NOT NULL AND (eta IS NULL OR eta <= statement_timestamp())) THEN 1 ELSE 0 END AS late,
        -(extract(epoch from due_at - statement_timestamp())::float8) AS overdue,
        extract(epoch from statement_timestamp() - created_at)::float8 - coalesce(extract(epoch from greatest(eta, created_at) - created_at), 0)::float8 AS age
    FROM celery_outbox
    WHERE due_at > statement_timestamp()
      AND due_at < '9999-01-01 00:00:00+00'
    ORDER BY due_at, id
    LIMIT %s
) AS part;
SELECT count(*), sum(own), sum(own * failed)
FROM (
    SELECT CASE WHEN destination IS NULL THEN 1 ELSE 0 END AS own,
        CASE WHEN kind = 'task' THEN 1 ELSE 0 END AS failed
    FROM celery_outbox_dead_letter
    ORDER BY id DESC
    LIMIT %s
) AS newest;

-- stats: The numbers of `celery outbox status` and the admin.
SELECT count(*), sum(leased), sum(postponed), sum(late), max(overdue),
    max(CASE WHEN late = 1 THEN age END)
FROM (
    SELECT CASE WHEN claimed_until >= statement_timestamp() THEN 1 ELSE 0 END AS leased,
        CASE WHEN (claimed_until IS NULL OR claimed_until < statement_timestamp()) AND (updated_at IS NOT NULL AND (eta IS NULL OR eta <= statement_timestamp())) THEN 1 ELSE 0 END AS postponed,
        CASE WHEN due_at <= statement_timestamp() OR (updated_at IS NOT NULL AND (eta IS NULL OR eta <= statement_timestamp())) THEN 1 ELSE 0 END AS late,
        -(extract(epoch from due_at - statement_timestamp())::float8) AS overdue,
        extract(epoch from statement_timestamp() - created_at)::float8 - coalesce(extract(epoch from greatest(eta, created_at) - created_at), 0)::float8 AS age
    FROM celery_outbox
    WHERE due_at <= statement_timestamp()
    ORDER BY due_at, id
    LIMIT %s
) AS part;
SELECT count(*), sum(leased), sum(postponed), sum(late), max(overdue),
    max(CASE WHEN late = 1 THEN age END)
FROM (
    SELECT CASE WHEN claimed_until >= statement_timestamp() THEN 1 ELSE 0 END AS leased,
        CASE WHEN (claimed_until IS NULL OR claimed_until < statement_timestamp()) AND (updated_at IS NOT NULL AND (eta IS NULL OR eta <= statement_timestamp())) THEN 1 ELSE 0 END AS postponed,
        CASE WHEN due_at <= statement_timestamp() OR (updated_at IS NOT NULL AND (eta IS NULL OR eta <= statement_timestamp())) THEN 1 ELSE 0 END AS late,
        -(extract(epoch from due_at - statement_timestamp())::float8) AS overdue,
        extract(epoch from statement_timestamp() - created_at)::float8 - coalesce(extract(epoch from greatest(eta, created_at) - created_at), 0)::float8 AS age
    FROM celery_outbox
    WHERE due_at > statement_timestamp()
      AND due_at < '9999-01-01 00:00:00+00'
    ORDER BY due_at, id
    LIMIT %s
) AS part;
SELECT task_name, count(*), max(last_error), sum(count(*)) OVER ()
FROM (
    SELECT *
    FROM (
        SELECT task_name, claimed_by, last_error,
            extract(epoch from claimed_until - statement_timestamp())::float8 AS seconds_left,
            CASE WHEN claimed_until >= statement_timestamp() THEN 1 ELSE 0 END AS leased,
            CASE WHEN due_at IS NOT NULL AND retries > 0 THEN 1 ELSE 0 END AS failing
        FROM celery_outbox
        WHERE due_at <= statement_timestamp()
        ORDER BY due_at DESC, id DESC
        LIMIT %s
    ) AS due UNION ALL
    SELECT *
    FROM (
        SELECT task_name, claimed_by, last_error,
            extract(epoch from claimed_until - statement_timestamp())::float8 AS seconds_left,
            CASE WHEN claimed_until >= statement_timestamp() THEN 1 ELSE 0 END AS leased,
            CASE WHEN due_at IS NOT NULL AND retries > 0 THEN 1 ELSE 0 END AS failing
        FROM celery_outbox
        WHERE due_at > statement_timestamp()
          AND due_at < '9999-01-01 00:00:00+00'
        ORDER BY due_at, id
        LIMIT %s
    ) AS ahead
) AS pending
WHERE failing = 1
GROUP BY task_name
ORDER BY 2 DESC, 1
LIMIT %s;
SELECT count(*), sum(own), sum(own * failed)
FROM (
    SELECT CASE WHEN destination IS NULL THEN 1 ELSE 0 END AS own,
        CASE WHEN kind = 'task' THEN 1 ELSE 0 END AS failed
    FROM celery_outbox_dead_letter
    ORDER BY id DESC
    LIMIT %s
) AS newest;
SELECT count(*)
FROM (
    SELECT 1 AS one
    FROM celery_outbox
    WHERE due_at IS NULL
    LIMIT %s
) AS counted;
SELECT claimed_by, count(*), min(seconds_left)
FROM (
    SELECT task_name, claimed_by, last_error,
        extract(epoch from claimed_until - statement_timestamp())::float8 AS seconds_left,
        CASE WHEN claimed_until >= statement_timestamp() THEN 1 ELSE 0 END AS leased,
        CASE WHEN due_at IS NOT NULL AND retries > 0 THEN 1 ELSE 0 END AS failing
    FROM celery_outbox
    WHERE due_at IS NOT NULL
    ORDER BY due_at, id
    LIMIT %s
) AS pending
WHERE leased = 1
GROUP BY claimed_by
ORDER BY 2 DESC, 1;

-- estimate: Instead of a count that reached its cap.
EXPLAIN (FORMAT JSON)
SELECT id
FROM celery_outbox
WHERE due_at <= statement_timestamp();

-- charts: The charts of the admin.
SELECT ago, published, count(*)
FROM (
    SELECT round(extract(epoch from statement_timestamp() - created_at)::float8 / 60 - 0.5) AS ago,
        CASE WHEN due_at IS NULL THEN 1 ELSE 0 END AS published
    FROM (
        SELECT created_at, due_at
        FROM celery_outbox
        ORDER BY id DESC
        LIMIT %s
    ) AS newest
) AS minutes
GROUP BY ago, published;
SELECT ago, published, count(*)
FROM (
    SELECT round(extract(epoch from statement_timestamp() - created_at)::float8 / 60 - 0.5) AS ago,
        CASE WHEN due_at IS NULL THEN 1 ELSE 0 END AS published
    FROM (
        SELECT dead_at AS created_at, 0 AS due_at
        FROM celery_outbox_dead_letter
        ORDER BY dead_at DESC
        LIMIT %s
    ) AS newest
) AS minutes
GROUP BY ago, published;
SELECT ahead, scheduled, count(*)
FROM (
    SELECT round(extract(epoch from due_at - statement_timestamp())::float8 / 60 - 0.5) AS ahead,
        CASE WHEN due_at > statement_timestamp() AND due_at < '9999-01-01 00:00:00+00' AND (claimed_until IS NULL OR claimed_until < statement_timestamp()) AND (updated_at IS NULL OR eta > statement_timestamp()) THEN 1 ELSE 0 END AS scheduled
    FROM celery_outbox
    WHERE due_at > statement_timestamp()
      AND due_at < '9999-01-01 00:00:00+00'
      AND due_at < statement_timestamp() + %s * interval '1 second'
    ORDER BY due_at, id
    LIMIT %s
) AS minutes
GROUP BY ahead, scheduled;

-- list dead letters: `celery outbox dead`.
SELECT id, coalesce(kind, 'message'), task_id, task_name,
    to_char(dead_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
    extract(epoch from dead_at - statement_timestamp())::float8, retries,
    substr(failure_reason, 1, %s), destination
FROM celery_outbox_dead_letter
WHERE task_name LIKE %s ESCAPE '!'
  AND coalesce(kind, 'message') = %s
ORDER BY id DESC
LIMIT %s;

-- count dead letters: Before a replay or a purge.
SELECT count(*)
FROM celery_outbox_dead_letter
WHERE task_name LIKE %s ESCAPE '!'
  AND dead_at >= statement_timestamp() + %s * interval '1 second';

-- replay: Move dead letters back into the outbox.
BEGIN;
SELECT id
FROM celery_outbox_dead_letter
WHERE task_name LIKE %s ESCAPE '!'
  AND dead_at >= statement_timestamp() + %s * interval '1 second'
ORDER BY id
LIMIT %s
FOR UPDATE SKIP LOCKED;
INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, payload, redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, eta, created_at,
    schema_version, retries, due_at)
SELECT task_id, task_name, args, kwargs, options, payload, redacted_args, redacted_kwargs,
    sentry_trace_id, sentry_baggage, structlog_context, eta, statement_timestamp(),
    schema_version, 0, statement_timestamp()
FROM celery_outbox_dead_letter
WHERE id = ANY(%s)
  AND destination IS NULL
ORDER BY id;
INSERT INTO celery_outbox_delivery (task_id, task_name, args, kwargs, options, payload,
    redacted_args, redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, eta,
    created_at, schema_version, retries, destination, order_key, id, due_at)
SELECT task_id, task_name, args, kwargs, options, payload, redacted_args, redacted_kwargs,
    sentry_trace_id, sentry_baggage, structlog_context, eta, statement_timestamp(),
    schema_version, 0, destination, order_key, position, statement_timestamp()
FROM celery_outbox_dead_letter
WHERE id = ANY(%s)
  AND destination IS NOT NULL
ORDER BY id;
DELETE FROM celery_outbox_dead_letter
WHERE id = ANY(%s);
COMMIT;

-- purge dead letters: Delete old dead letters.
SELECT id, destination, order_key
FROM celery_outbox_dead_letter
WHERE dead_at < statement_timestamp() + %s * interval '1 second'
ORDER BY dead_at, id
LIMIT %s;
DELETE FROM celery_outbox_dead_letter
WHERE id = ANY(%s);

-- count published: Before a purge.
SELECT destination
FROM celery_outbox_delivery
WHERE destination > %s
ORDER BY destination
LIMIT 1;
SELECT count(*)
FROM celery_outbox
WHERE due_at IS NULL
  AND published_at < statement_timestamp() + %s * interval '1 second';

-- purge published: Delete old published rows.
SELECT destination
FROM celery_outbox_delivery
WHERE destination > %s
ORDER BY destination
LIMIT 1;
SELECT id
FROM celery_outbox
WHERE due_at IS NULL
  AND published_at < statement_timestamp() + %s * interval '1 second'
ORDER BY due_at, id
LIMIT %s;
DELETE FROM celery_outbox
WHERE id = ANY(%s)
  AND due_at IS NULL;

-- keep failed task: A task failed for good, in its worker.
INSERT INTO celery_outbox_dead_letter (task_id, task_name, args, kwargs, options, payload,
    redacted_args, redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context,
    schema_version, created_at, dead_at, retries, failure_reason, traceback, kind)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, clock_timestamp(), clock_timestamp(),
    %s, %s, %s, 'task');

-- once: `@once`: an entry before the work, and the result after it.
INSERT INTO celery_outbox_inbox (inbox_key, task_name, created_at, expires_at, duplicates)
VALUES (%s, %s, statement_timestamp(), statement_timestamp() + %s * interval '1 second', 0)
ON CONFLICT (inbox_key) DO UPDATE SET duplicates = celery_outbox_inbox.duplicates + 1
RETURNING duplicates, content_type, content_encoding, result;
UPDATE celery_outbox_inbox
SET content_type = %s, content_encoding = %s, result = %s
WHERE inbox_key = %s;

-- once, a duplicate: The same statement waits for the first, and gets its result.
INSERT INTO celery_outbox_inbox (inbox_key, task_name, created_at, expires_at, duplicates)
VALUES (%s, %s, statement_timestamp(), statement_timestamp() + %s * interval '1 second', 0)
ON CONFLICT (inbox_key) DO UPDATE SET duplicates = celery_outbox_inbox.duplicates + 1
RETURNING duplicates, content_type, content_encoding, result;

-- count inbox entries: Before a purge.
SELECT count(*)
FROM celery_outbox_inbox
WHERE expires_at < statement_timestamp();

-- purge inbox entries: Delete entries that have expired.
SELECT inbox_key
FROM celery_outbox_inbox
WHERE expires_at < statement_timestamp()
ORDER BY expires_at
LIMIT %s;
DELETE FROM celery_outbox_inbox
WHERE inbox_key = ANY(%s)
  AND expires_at < statement_timestamp();

-- lock order keys: Before events with a key.
SELECT pg_advisory_xact_lock(%s, number)
FROM unnest(%s::int[]) AS number;

-- enqueue an event: A row for each destination, here one.
INSERT INTO celery_outbox_delivery (task_id, task_name, args, kwargs, options, payload,
    redacted_args, redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context,
    destination, order_key, schema_version, created_at, due_at, retries)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, clock_timestamp(),
    clock_timestamp(), 0);

-- enqueue events: For two destinations, or of a bulk.
INSERT INTO celery_outbox_delivery (task_id, task_name, args, kwargs, options, payload,
    redacted_args, redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context,
    destination, order_key, schema_version, created_at, due_at, retries)
SELECT task_id, task_name, args, kwargs, options, decode(payload, 'hex'), redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, destination, order_key,
    schema_version::smallint, clock_timestamp(), clock_timestamp(), 0
FROM json_to_recordset(%s::json) AS row(task_id text, task_name text, args text, kwargs text,
    options text, payload text, redacted_args text, redacted_kwargs text, sentry_trace_id text,
    sentry_baggage text, structlog_context text, destination text, order_key text,
    schema_version text, eta text, countdown text);

-- enqueue an event and notify: Wakes the relay of its destination.
WITH rows AS (
    INSERT INTO celery_outbox_delivery (task_id, task_name, args, kwargs, options, payload,
        redacted_args, redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context,
        destination, order_key, schema_version, created_at, due_at, retries)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, clock_timestamp(),
        clock_timestamp(), 0)
    RETURNING destination, due_at
)
SELECT pg_notify('celery_outbox_delivery', destination)
FROM (SELECT DISTINCT destination FROM rows) AS named;

-- notify a destination: Wakes its relay after further events.
SELECT pg_notify('celery_outbox_delivery', destination)
FROM (SELECT %s::text) AS named (destination);

-- claim for a destination: Lease due rows of it.
WITH due AS MATERIALIZED (
    SELECT id AS due_id,
        octet_length(args)::bigint + octet_length(kwargs) + octet_length(options) + coalesce(octet_length(payload), 0) AS size,
        coalesce(claimed_by <> %s, false) AS orphaned
    FROM celery_outbox_delivery
    WHERE destination = %s
      AND due_at <= statement_timestamp()
      AND (claimed_until IS NULL OR claimed_until < statement_timestamp())
      AND schema_version IN (%s, %s)
    ORDER BY due_at, id
    LIMIT %s
    FOR UPDATE SKIP LOCKED
), summed AS (
    SELECT *, sum(size) OVER (ROWS UNBOUNDED PRECEDING) AS total
    FROM due
), fitting AS MATERIALIZED (
    SELECT due_id, orphaned, size > %s AS oversized
    FROM summed
    WHERE total <= %s OR total = size
), no_disk_wait AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
)
UPDATE celery_outbox_delivery
SET claimed_by = %s, claimed_until = statement_timestamp() + %s * interval '1 second'
FROM fitting, no_disk_wait
WHERE id = due_id
RETURNING extract(epoch from due_at)::float8, id, task_id, task_name,
    CASE WHEN NOT oversized THEN args ELSE '' END,
    CASE WHEN NOT oversized THEN kwargs ELSE '' END,
    CASE WHEN NOT oversized THEN options ELSE '' END, CASE WHEN NOT oversized THEN payload END,
    retries, schema_version, sentry_trace_id, sentry_baggage, structlog_context,
    to_char(eta AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
    extract(epoch from statement_timestamp() - created_at)::float8,
    coalesce(extract(epoch from greatest(eta, created_at) - created_at), 0)::float8,
    updated_at IS NOT NULL, orphaned, oversized, order_key;

-- find what has to wait: After a claim of rows with a key: by key, the first row that they wait for.
SELECT mine.order_key, (
    SELECT other.id
    FROM celery_outbox_delivery AS other
    WHERE other.destination = %s
      AND other.order_key = mine.order_key
      AND (other.claimed_by IS NULL OR other.claimed_by <> %s OR NOT other.id = ANY(%s))
    ORDER BY other.id
    LIMIT 1
), (
    SELECT min(position)
    FROM celery_outbox_dead_letter
    WHERE destination = %s
      AND celery_outbox_dead_letter.order_key = mine.order_key
)
FROM (
    SELECT DISTINCT order_key
    FROM celery_outbox_delivery
    WHERE id = ANY(%s)
) AS mine;

-- hold back: What has to wait is given back, due at no time; and the first row of its key?
UPDATE celery_outbox_delivery
SET due_at = '9999-01-01 00:00:00+00', claimed_by = %s, claimed_until = NULL
WHERE id = ANY(%s)
  AND claimed_by = %s;
SELECT k, (
    SELECT id
    FROM celery_outbox_delivery
    WHERE destination = %s
      AND order_key = k
    ORDER BY id
    LIMIT 1
)
FROM unnest(%s::text[]) AS wanted (k);
SELECT id
FROM celery_outbox_delivery
WHERE id = ANY(%s)
  AND due_at >= '9999-01-01 00:00:00+00'
  AND (claimed_until IS NULL OR claimed_until < statement_timestamp());

-- settle and release the next: With a key: the next row of it is due.
DELETE FROM celery_outbox_delivery
WHERE id = ANY(%s)
  AND (claimed_by = %s OR claimed_by IS NULL OR claimed_by = '')
  AND due_at IS NOT NULL;
SELECT k, (
    SELECT id
    FROM celery_outbox_delivery
    WHERE destination = %s
      AND order_key = k
    ORDER BY id
    LIMIT 1
)
FROM unnest(%s::text[]) AS wanted (k);
SELECT id
FROM celery_outbox_delivery
WHERE id = ANY(%s)
  AND due_at >= '9999-01-01 00:00:00+00'
  AND (claimed_until IS NULL OR claimed_until < statement_timestamp());
SELECT order_key, min(position)
FROM celery_outbox_dead_letter
WHERE destination = %s
  AND order_key = ANY(%s)
GROUP BY order_key;
SELECT id
FROM celery_outbox_delivery
WHERE destination = %s
  AND order_key = %s
  AND id >= %s
ORDER BY id
LIMIT %s;
BEGIN;
SELECT id
FROM celery_outbox_delivery
WHERE id = ANY(%s)
  AND due_at >= '9999-01-01 00:00:00+00'
  AND (claimed_until IS NULL OR claimed_until < statement_timestamp())
FOR UPDATE SKIP LOCKED;
UPDATE celery_outbox_delivery
SET due_at = statement_timestamp()
WHERE id = ANY(%s);
COMMIT;

-- look after: Rows that a relay which died left held back.
SELECT id, order_key
FROM celery_outbox_delivery
WHERE destination = %s
  AND due_at = '9999-01-01 00:00:00+00'
  AND id > %s
  AND due_at >= '9999-01-01 00:00:00+00'
  AND (claimed_until IS NULL OR claimed_until < statement_timestamp())
ORDER BY due_at, id
LIMIT %s;

-- settle dead for a destination: It keeps its place.
BEGIN;
INSERT INTO celery_outbox_dead_letter (task_id, task_name, args, kwargs, options, payload,
    redacted_args, redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, eta,
    created_at, schema_version, destination, order_key, position, retries, dead_at,
    failure_reason)
SELECT task_id, task_name, args, kwargs, options, payload, redacted_args, redacted_kwargs,
    sentry_trace_id, sentry_baggage, structlog_context, eta, created_at, schema_version,
    destination, order_key, id, %s, statement_timestamp(), %s
FROM celery_outbox_delivery
WHERE id = ANY(%s)
  AND claimed_by = %s
FOR UPDATE;
DELETE FROM celery_outbox_delivery
WHERE id = ANY(%s)
  AND claimed_by = %s;
COMMIT;

-- replay for a destination: Back to its former place.
BEGIN;
SELECT id
FROM celery_outbox_dead_letter
WHERE destination = %s
ORDER BY id
LIMIT %s
FOR UPDATE SKIP LOCKED;
INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, payload, redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, eta, created_at,
    schema_version, retries, due_at)
SELECT task_id, task_name, args, kwargs, options, payload, redacted_args, redacted_kwargs,
    sentry_trace_id, sentry_baggage, structlog_context, eta, statement_timestamp(),
    schema_version, 0, statement_timestamp()
FROM celery_outbox_dead_letter
WHERE id = ANY(%s)
  AND destination IS NULL
ORDER BY id;
INSERT INTO celery_outbox_delivery (task_id, task_name, args, kwargs, options, payload,
    redacted_args, redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, eta,
    created_at, schema_version, retries, destination, order_key, id, due_at)
SELECT task_id, task_name, args, kwargs, options, payload, redacted_args, redacted_kwargs,
    sentry_trace_id, sentry_baggage, structlog_context, eta, statement_timestamp(),
    schema_version, 0, destination, order_key, position, statement_timestamp()
FROM celery_outbox_dead_letter
WHERE id = ANY(%s)
  AND destination IS NOT NULL
ORDER BY id;
DELETE FROM celery_outbox_dead_letter
WHERE id = ANY(%s);
COMMIT;

-- first use of a rate: Its row is written.
BEGIN;
SELECT extract(epoch from used_until - statement_timestamp())::float8,
    extract(epoch from planned_until - statement_timestamp())::float8
FROM celery_outbox_rate
WHERE name = %s
FOR UPDATE;
COMMIT;
INSERT INTO celery_outbox_rate (name, per_second, used_until, planned_until)
VALUES (%s, %s, statement_timestamp(), statement_timestamp() + %s * interval '1 second');
BEGIN;
SELECT extract(epoch from used_until - statement_timestamp())::float8,
    extract(epoch from planned_until - statement_timestamp())::float8
FROM celery_outbox_rate
WHERE name = %s
FOR UPDATE;
SELECT id
FROM celery_outbox
WHERE id = ANY(%s)
  AND claimed_by = %s
  AND paced IS NOT NULL;
UPDATE celery_outbox_rate
SET used_until = used_until + %s * interval '1 second',
    planned_until = planned_until + %s * interval '1 second'
WHERE name = %s;
COMMIT;

-- pace: Take turns; give back what exceeds the rate.
BEGIN;
SELECT extract(epoch from used_until - statement_timestamp())::float8,
    extract(epoch from planned_until - statement_timestamp())::float8
FROM celery_outbox_rate
WHERE name = %s
FOR UPDATE;
SELECT id
FROM celery_outbox
WHERE id = ANY(%s)
  AND claimed_by = %s
  AND paced IS NOT NULL;
UPDATE celery_outbox_rate
SET used_until = used_until + %s * interval '1 second',
    planned_until = planned_until + %s * interval '1 second'
WHERE name = %s;
UPDATE celery_outbox
SET due_at = statement_timestamp() + CASE id WHEN %s THEN %s END * interval '1 second',
    paced = (1 = 1), claimed_by = %s, claimed_until = NULL
WHERE id = ANY(%s)
  AND claimed_by = %s;
COMMIT;

-- rates: For `celery outbox status`.
SELECT name, extract(epoch from planned_until - statement_timestamp())::float8
FROM celery_outbox_rate
ORDER BY name;

-- use other rates: When a relay begins to work.
SELECT name, per_second
FROM celery_outbox_rate;
BEGIN;
SELECT id
FROM celery_outbox
WHERE id > %s
  AND paced IS NOT NULL
  AND due_at > statement_timestamp()
  AND due_at < '9999-01-01 00:00:00+00'
  AND (claimed_until IS NULL OR claimed_until < statement_timestamp())
  AND updated_at IS NULL
ORDER BY id
LIMIT %s
FOR UPDATE SKIP LOCKED;
UPDATE celery_outbox
SET due_at = statement_timestamp(), paced = NULL
WHERE id = ANY(%s);
COMMIT;
BEGIN;
SELECT id
FROM celery_outbox
WHERE id > %s
  AND paced IS NOT NULL
  AND due_at > statement_timestamp()
  AND due_at < '9999-01-01 00:00:00+00'
  AND (claimed_until IS NULL OR claimed_until < statement_timestamp())
  AND updated_at IS NULL
ORDER BY id
LIMIT %s
FOR UPDATE SKIP LOCKED;
COMMIT;
BEGIN;
SELECT id
FROM celery_outbox_delivery
WHERE id > %s
  AND paced IS NOT NULL
  AND due_at > statement_timestamp()
  AND due_at < '9999-01-01 00:00:00+00'
  AND (claimed_until IS NULL OR claimed_until < statement_timestamp())
  AND updated_at IS NULL
ORDER BY id
LIMIT %s
FOR UPDATE SKIP LOCKED;
COMMIT;
DELETE FROM celery_outbox_rate;

-- sample a destination: Its gauges.
SELECT count(*), sum(leased), sum(postponed), sum(late), max(overdue),
    max(CASE WHEN late = 1 THEN age END)
FROM (
    SELECT CASE WHEN claimed_until >= statement_timestamp() THEN 1 ELSE 0 END AS leased,
        CASE WHEN (claimed_until IS NULL OR claimed_until < statement_timestamp()) AND (updated_at IS NOT NULL AND (eta IS NULL OR eta <= statement_timestamp())) THEN 1 ELSE 0 END AS postponed,
        CASE WHEN due_at <= statement_timestamp() OR (updated_at IS NOT NULL AND (eta IS NULL OR eta <= statement_timestamp())) THEN 1 ELSE 0 END AS late,
        -(extract(epoch from due_at - statement_timestamp())::float8) AS overdue,
        extract(epoch from statement_timestamp() - created_at)::float8 - coalesce(extract(epoch from greatest(eta, created_at) - created_at), 0)::float8 AS age
    FROM celery_outbox_delivery
    WHERE destination = %s
      AND due_at <= statement_timestamp()
    ORDER BY due_at, id
    LIMIT %s
) AS part;
SELECT count(*), sum(leased), sum(postponed), sum(late), max(overdue),
    max(CASE WHEN late = 1 THEN age END)
FROM (
    SELECT CASE WHEN claimed_until >= statement_timestamp() THEN 1 ELSE 0 END AS leased,
        CASE WHEN (claimed_until IS NULL OR claimed_until < statement_timestamp()) AND (updated_at IS NOT NULL AND (eta IS NULL OR eta <= statement_timestamp())) THEN 1 ELSE 0 END AS postponed,
        CASE WHEN due_at <= statement_timestamp() OR (updated_at IS NOT NULL AND (eta IS NULL OR eta <= statement_timestamp())) THEN 1 ELSE 0 END AS late,
        -(extract(epoch from due_at - statement_timestamp())::float8) AS overdue,
        extract(epoch from statement_timestamp() - created_at)::float8 - coalesce(extract(epoch from greatest(eta, created_at) - created_at), 0)::float8 AS age
    FROM celery_outbox_delivery
    WHERE destination = %s
      AND due_at > statement_timestamp()
      AND due_at < '9999-01-01 00:00:00+00'
    ORDER BY due_at, id
    LIMIT %s
) AS part;
SELECT count(*), sum(own), sum(own * failed)
FROM (
    SELECT CASE WHEN destination = %s THEN 1 ELSE 0 END AS own,
        CASE WHEN kind = 'task' THEN 1 ELSE 0 END AS failed
    FROM celery_outbox_dead_letter
    ORDER BY id DESC
    LIMIT %s
) AS newest;
SELECT count(*)
FROM (
    SELECT 1 AS one
    FROM celery_outbox_delivery
    WHERE destination = %s
      AND due_at >= '9999-01-01 00:00:00+00'
      AND (claimed_until IS NULL OR claimed_until < statement_timestamp())
    LIMIT %s
) AS counted;

-- stored destinations: Those that rows are stored for.
SELECT destination
FROM celery_outbox_delivery
WHERE destination > %s
ORDER BY destination
LIMIT 1;
SELECT destination
FROM celery_outbox_delivery
WHERE destination > %s
ORDER BY destination
LIMIT 1;

-- pauses: Every few seconds, for all destinations.
SELECT name, reason, paused_by,
    -(extract(epoch from paused_at - statement_timestamp())::float8) AS paused_for
FROM celery_outbox_pause;
