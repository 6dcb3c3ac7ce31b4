-- enqueue one: A call, in the caller's transaction.
INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, payload, redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, created_at, due_at,
    retries, schema_version)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0, 1);

-- enqueue many: Calls of a bulk or a group, here two.
INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, payload, redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, created_at, due_at,
    retries, schema_version)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0, 1),
    (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0, 1);

-- enqueue one, held: A call with an eta or a countdown: due later.
INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, payload, redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, created_at, due_at,
    eta, retries, schema_version)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(6),
    COALESCE(GREATEST(UTC_TIMESTAMP(6), COALESCE(CAST(%s AS DATETIME(6)),
    UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND)), UTC_TIMESTAMP(6)),
    COALESCE(CAST(%s AS DATETIME(6)),
    UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND), 0, 1);

-- enqueue many, held: Calls of which at least one is due later, here two.
INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, payload, redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, created_at, due_at,
    eta, retries, schema_version)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(6),
    COALESCE(GREATEST(UTC_TIMESTAMP(6), COALESCE(CAST(%s AS DATETIME(6)),
    UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND)), UTC_TIMESTAMP(6)),
    COALESCE(CAST(%s AS DATETIME(6)),
    UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND), 0, 1), (%s, %s, %s, %s, %s,
    %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(6), COALESCE(GREATEST(UTC_TIMESTAMP(6),
    COALESCE(CAST(%s AS DATETIME(6)),
    UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND)), UTC_TIMESTAMP(6)),
    COALESCE(CAST(%s AS DATETIME(6)),
    UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND), 0, 1);

-- enqueue with a key: A call whose key is free.
SELECT outbox_key, CASE WHEN due_at IS NOT NULL AND claimed_by IS NULL THEN 1 ELSE 0 END
FROM celery_outbox FORCE INDEX (celery_outbox_key)
WHERE outbox_key IN (%s)
ORDER BY outbox_key;
INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, payload, redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, outbox_key, created_at,
    due_at, retries, schema_version)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0,
    1)
ON DUPLICATE KEY UPDATE id = id;
SELECT outbox_key, task_id, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) / 1000000e0
FROM celery_outbox FORCE INDEX (celery_outbox_key)
WHERE outbox_key IN (%s)
  AND due_at IS NOT NULL
  AND claimed_by IS NULL
ORDER BY outbox_key
FOR UPDATE;

-- enqueue with a key, kept: A call with this key waits, and is locked.
SELECT outbox_key, CASE WHEN due_at IS NOT NULL AND claimed_by IS NULL THEN 1 ELSE 0 END
FROM celery_outbox FORCE INDEX (celery_outbox_key)
WHERE outbox_key IN (%s)
ORDER BY outbox_key;
SELECT outbox_key, task_id, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) / 1000000e0
FROM celery_outbox FORCE INDEX (celery_outbox_key)
WHERE outbox_key IN (%s)
  AND due_at IS NOT NULL
  AND claimed_by IS NULL
ORDER BY outbox_key
FOR UPDATE;

-- enqueue with a key, replaced: The newest call takes its place.
SELECT outbox_key, CASE WHEN due_at IS NOT NULL AND claimed_by IS NULL THEN 1 ELSE 0 END
FROM celery_outbox FORCE INDEX (celery_outbox_key)
WHERE outbox_key IN (%s)
ORDER BY outbox_key;
SELECT outbox_key, task_id, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) / 1000000e0
FROM celery_outbox FORCE INDEX (celery_outbox_key)
WHERE outbox_key IN (%s)
  AND due_at IS NOT NULL
  AND claimed_by IS NULL
ORDER BY outbox_key
FOR UPDATE;
UPDATE celery_outbox FORCE INDEX (celery_outbox_key)
SET task_id = %s, task_name = %s, args = %s, kwargs = %s, options = %s, payload = %s,
    redacted_args = %s, redacted_kwargs = %s, sentry_trace_id = %s, sentry_baggage = %s,
    structlog_context = %s, created_at = UTC_TIMESTAMP(6),
    due_at = COALESCE(GREATEST(UTC_TIMESTAMP(6), COALESCE(CAST(%s AS DATETIME(6)),
    UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND)), UTC_TIMESTAMP(6)),
    eta = COALESCE(CAST(%s AS DATETIME(6)),
    UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND), retries = 0,
    schema_version = 1, updated_at = NULL, last_error = NULL, claimed_by = NULL,
    claimed_until = NULL
WHERE outbox_key = %s;

-- free a key: Of a row that is in flight or published.
UPDATE celery_outbox FORCE INDEX (celery_outbox_key)
SET outbox_key = NULL
WHERE outbox_key IN (%s)
  AND NOT (due_at IS NOT NULL AND claimed_by IS NULL);

-- open session: The first statements of a relay's session.
SET SESSION lock_wait_timeout = LEAST(@@lock_wait_timeout, 20);

-- claim: Lease due rows; a full scan of the due index.
BEGIN;
SELECT due_at, LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0),
    id, task_id, task_name,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN args ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN kwargs ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN options ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN payload END,
    retries, schema_version, sentry_trace_id, sentry_baggage, structlog_context,
    DATE_FORMAT(eta, '%Y-%m-%dT%H:%i:%s.%f+00:00'),
    TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0,
    COALESCE(TIMESTAMPDIFF(MICROSECOND, created_at, GREATEST(eta, created_at)) / 1000000e0, 0),
    updated_at IS NOT NULL, COALESCE(claimed_by <> %s, 0),
    (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) > %s
FROM celery_outbox FORCE INDEX (celery_outbox_due)
WHERE due_at <= UTC_TIMESTAMP(6)
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6))
  AND schema_version IN (%s)
ORDER BY due_at, id
LIMIT %s
FOR UPDATE SKIP LOCKED;
UPDATE celery_outbox FORCE INDEX (PRIMARY)
SET claimed_by = %s, claimed_until = UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND
WHERE id IN (%s);
COMMIT;

-- claim from watermark: Lease due rows, from where the last claim ended.
BEGIN;
SELECT due_at, LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0),
    id, task_id, task_name,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN args ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN kwargs ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN options ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN payload END,
    retries, schema_version, sentry_trace_id, sentry_baggage, structlog_context,
    DATE_FORMAT(eta, '%Y-%m-%dT%H:%i:%s.%f+00:00'),
    TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0,
    COALESCE(TIMESTAMPDIFF(MICROSECOND, created_at, GREATEST(eta, created_at)) / 1000000e0, 0),
    updated_at IS NOT NULL, COALESCE(claimed_by <> %s, 0),
    (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) > %s
FROM celery_outbox FORCE INDEX (celery_outbox_due)
WHERE due_at >= %s - INTERVAL 1 SECOND
  AND due_at >= %s
  AND due_at <= UTC_TIMESTAMP(6)
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6))
  AND schema_version IN (%s)
ORDER BY due_at, id
LIMIT %s
FOR UPDATE SKIP LOCKED;
UPDATE celery_outbox FORCE INDEX (PRIMARY)
SET claimed_by = %s, claimed_until = UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND
WHERE id IN (%s);
COMMIT;

-- claim and adopt: A claim that may take its own leased rows.
BEGIN;
SELECT due_at, LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0),
    id, task_id, task_name,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN args ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN kwargs ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN options ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN payload END,
    retries, schema_version, sentry_trace_id, sentry_baggage, structlog_context,
    DATE_FORMAT(eta, '%Y-%m-%dT%H:%i:%s.%f+00:00'),
    TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0,
    COALESCE(TIMESTAMPDIFF(MICROSECOND, created_at, GREATEST(eta, created_at)) / 1000000e0, 0),
    updated_at IS NOT NULL, COALESCE(claimed_by <> %s, 0),
    (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) > %s
FROM celery_outbox FORCE INDEX (celery_outbox_due)
WHERE due_at <= UTC_TIMESTAMP(6)
  AND ((claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6)) OR claimed_by = %s)
  AND schema_version IN (%s)
ORDER BY due_at, id
LIMIT %s
FOR UPDATE SKIP LOCKED;
UPDATE celery_outbox FORCE INDEX (PRIMARY)
SET claimed_by = %s, claimed_until = UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND
WHERE id IN (%s);
COMMIT;

-- claim without orphans: A claim that takes over no expired lease, after the database was away.
BEGIN;
SELECT due_at, LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0),
    id, task_id, task_name,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN args ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN kwargs ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN options ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN payload END,
    retries, schema_version, sentry_trace_id, sentry_baggage, structlog_context,
    DATE_FORMAT(eta, '%Y-%m-%dT%H:%i:%s.%f+00:00'),
    TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0,
    COALESCE(TIMESTAMPDIFF(MICROSECOND, created_at, GREATEST(eta, created_at)) / 1000000e0, 0),
    updated_at IS NOT NULL, COALESCE(claimed_by <> %s, 0),
    (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) > %s
FROM celery_outbox FORCE INDEX (celery_outbox_due)
WHERE due_at >= %s - INTERVAL 1 SECOND
  AND due_at >= %s
  AND due_at <= UTC_TIMESTAMP(6)
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6))
  AND (claimed_until IS NULL OR claimed_by = %s)
  AND schema_version IN (%s)
ORDER BY due_at, id
LIMIT %s
FOR UPDATE SKIP LOCKED;
UPDATE celery_outbox FORCE INDEX (PRIMARY)
SET claimed_by = %s, claimed_until = UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND
WHERE id IN (%s);
COMMIT;

-- claim large rows: Reads the contents of large rows last.
BEGIN;
SELECT due_at, LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0),
    id, task_id, task_name,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN args ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN kwargs ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN options ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN payload END,
    retries, schema_version, sentry_trace_id, sentry_baggage, structlog_context,
    DATE_FORMAT(eta, '%Y-%m-%dT%H:%i:%s.%f+00:00'),
    TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0,
    COALESCE(TIMESTAMPDIFF(MICROSECOND, created_at, GREATEST(eta, created_at)) / 1000000e0, 0),
    updated_at IS NOT NULL, COALESCE(claimed_by <> %s, 0),
    (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) > %s
FROM celery_outbox FORCE INDEX (celery_outbox_due)
WHERE due_at <= UTC_TIMESTAMP(6)
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6))
  AND schema_version IN (%s)
ORDER BY due_at, id
LIMIT %s
FOR UPDATE SKIP LOCKED;
UPDATE celery_outbox FORCE INDEX (PRIMARY)
SET claimed_by = %s, claimed_until = UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND
WHERE id IN (%s);
SELECT id, args, kwargs, options, payload
FROM celery_outbox FORCE INDEX (PRIMARY)
WHERE id IN (%s);
COMMIT;

-- begin attempt: Count an attempt before it is made; then load a large message.
UPDATE celery_outbox FORCE INDEX (PRIMARY)
SET retries = %s, last_error = %s, updated_at = UTC_TIMESTAMP(6)
WHERE id IN (%s)
  AND claimed_by = %s;
SELECT args, kwargs, options, payload
FROM celery_outbox
WHERE id = %s
  AND claimed_by = %s;

-- settle published: Delete published rows.
DELETE target
FROM JSON_TABLE(%s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS chosen
STRAIGHT_JOIN celery_outbox AS target FORCE INDEX (PRIMARY)
WHERE target.id = chosen.id
  AND (claimed_by = %s OR (claimed_by IS NULL OR claimed_by = '') AND outbox_key IS NULL)
  AND due_at IS NOT NULL;

-- settle published, kept: Keep published rows.
BEGIN;
UPDATE celery_outbox FORCE INDEX (PRIMARY)
SET published_at = UTC_TIMESTAMP(6), updated_at = UTC_TIMESTAMP(6), due_at = NULL,
    claimed_by = NULL, claimed_until = NULL, retries = %s, last_error = NULL, outbox_key = NULL
WHERE id IN (%s, %s)
  AND (claimed_by = %s OR (claimed_by IS NULL OR claimed_by = '') AND outbox_key IS NULL)
  AND due_at IS NOT NULL;
COMMIT;

-- settle retry: A message failed.
BEGIN;
UPDATE celery_outbox FORCE INDEX (PRIMARY)
SET retries = %s, due_at = UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND,
    last_error = %s, updated_at = UTC_TIMESTAMP(6), claimed_by = %s, claimed_until = NULL
WHERE id IN (%s, %s)
  AND claimed_by = %s;
COMMIT;

-- settle deferred: The broker is away.
BEGIN;
UPDATE celery_outbox FORCE INDEX (PRIMARY)
SET retries = %s, due_at = UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND,
    last_error = %s, updated_at = UTC_TIMESTAMP(6), claimed_by = %s, claimed_until = NULL
WHERE id IN (%s, %s)
  AND claimed_by = %s;
COMMIT;

-- settle dead: Move to the dead letters.
BEGIN;
INSERT INTO celery_outbox_dead_letter (task_id, task_name, args, kwargs, options, payload,
    redacted_args, redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, eta,
    created_at, schema_version, retries, dead_at, failure_reason)
SELECT task_id, task_name, args, kwargs, options, payload, redacted_args, redacted_kwargs,
    sentry_trace_id, sentry_baggage, structlog_context, eta, created_at, schema_version, %s,
    UTC_TIMESTAMP(6), %s
FROM celery_outbox FORCE INDEX (PRIMARY)
WHERE id IN (%s, %s)
  AND claimed_by = %s
FOR UPDATE;
DELETE target
FROM JSON_TABLE(%s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS chosen
STRAIGHT_JOIN celery_outbox AS target FORCE INDEX (PRIMARY)
WHERE target.id = chosen.id
  AND claimed_by = %s;
COMMIT;

-- settle expired: Delete held calls that expired.
BEGIN;
DELETE target
FROM JSON_TABLE(%s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS chosen
STRAIGHT_JOIN celery_outbox AS target FORCE INDEX (PRIMARY)
WHERE target.id = chosen.id
  AND claimed_by = %s;
COMMIT;

-- renew: A batch takes long; which rows it lost, if it lost any.
UPDATE celery_outbox FORCE INDEX (PRIMARY)
SET claimed_until = UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND
WHERE id IN (%s, %s, %s)
  AND claimed_by = %s;
SELECT id
FROM celery_outbox FORCE INDEX (PRIMARY)
WHERE id IN (%s, %s, %s)
  AND claimed_by = %s;

-- release: Give claimed rows back, due at once.
UPDATE celery_outbox FORCE INDEX (PRIMARY)
SET claimed_by = NULL, claimed_until = NULL
WHERE id IN (%s, %s)
  AND claimed_by = %s;

-- next due: After a claim that found nothing: how long to wait.
SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) / 1000000e0
FROM celery_outbox FORCE INDEX (celery_outbox_due)
WHERE due_at > UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6))
ORDER BY due_at, id
LIMIT 1;

-- list scheduled: `celery outbox scheduled`.
SELECT destination
FROM celery_outbox_delivery FORCE INDEX (celery_outbox_dlv_due)
WHERE destination > %s
ORDER BY destination
LIMIT 1;
SELECT task_id, task_name, DATE_FORMAT(due_at, '%Y-%m-%dT%H:%i:%s.%f+00:00'),
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) / 1000000e0,
    substr(coalesce(redacted_args, args), 1, %s),
    substr(coalesce(redacted_kwargs, kwargs), 1, %s)
FROM celery_outbox FORCE INDEX (celery_outbox_due)
WHERE due_at > UTC_TIMESTAMP(6)
  AND due_at < '9999-01-01 00:00:00'
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6))
  AND (updated_at IS NULL OR eta > UTC_TIMESTAMP(6))
  AND CAST(task_name AS BINARY) LIKE CAST(%s AS BINARY) ESCAPE '!'
ORDER BY due_at, id
LIMIT %s;

-- reschedule: `app.outbox.reschedule()`, in the caller's transaction.
BEGIN;
SELECT id, task_id
FROM celery_outbox FORCE INDEX (celery_outbox_task_id)
WHERE task_id IN (%s)
  AND due_at IS NOT NULL
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6));
SELECT id, task_id, claimed_by IS NULL AND updated_at IS NULL
FROM celery_outbox FORCE INDEX (PRIMARY)
WHERE id IN (%s)
  AND due_at IS NOT NULL
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6))
ORDER BY id
FOR UPDATE;
UPDATE celery_outbox FORCE INDEX (PRIMARY)
SET eta = COALESCE(CAST(%s AS DATETIME(6)),
    UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND),
    due_at = COALESCE(GREATEST(UTC_TIMESTAMP(6), COALESCE(CAST(%s AS DATETIME(6)),
    UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND)), UTC_TIMESTAMP(6))
WHERE id IN (%s);
SELECT options,
    COALESCE(TIMESTAMPDIFF(MICROSECOND, created_at, GREATEST(eta, created_at)) / 1000000e0, 0)
FROM celery_outbox FORCE INDEX (PRIMARY)
WHERE id IN (%s);
COMMIT;

-- send now: `celery outbox send-now` and `app.outbox.send_now()`.
BEGIN;
SELECT id, task_id
FROM celery_outbox FORCE INDEX (celery_outbox_task_id)
WHERE task_id IN (%s)
  AND due_at IS NOT NULL
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6));
SELECT id, task_id, claimed_by IS NULL AND updated_at IS NULL
FROM celery_outbox FORCE INDEX (PRIMARY)
WHERE id IN (%s)
  AND due_at IS NOT NULL
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6))
ORDER BY id
FOR UPDATE;
UPDATE celery_outbox FORCE INDEX (PRIMARY)
SET eta = CASE WHEN eta > UTC_TIMESTAMP(6) THEN UTC_TIMESTAMP(6) ELSE eta END,
    due_at = UTC_TIMESTAMP(6)
WHERE id IN (%s)
  AND due_at > UTC_TIMESTAMP(6)
  AND due_at < '9999-01-01 00:00:00';
COMMIT;
BEGIN;
SELECT id, task_id
FROM celery_outbox_delivery FORCE INDEX (celery_outbox_dlv_task_id)
WHERE task_id IN (%s)
  AND due_at IS NOT NULL
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6));
COMMIT;

-- cancel: `celery outbox cancel`, `revoke()` in the caller's transaction.
BEGIN;
SELECT id, task_id
FROM celery_outbox FORCE INDEX (celery_outbox_task_id)
WHERE task_id IN (%s)
  AND due_at IS NOT NULL
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6));
SELECT id, task_id, claimed_by IS NULL AND updated_at IS NULL
FROM celery_outbox FORCE INDEX (PRIMARY)
WHERE id IN (%s)
  AND due_at IS NOT NULL
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6))
ORDER BY id
FOR UPDATE;
DELETE target
FROM JSON_TABLE(%s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS chosen
STRAIGHT_JOIN celery_outbox AS target FORCE INDEX (PRIMARY)
WHERE target.id = chosen.id;
COMMIT;
BEGIN;
SELECT id, task_id
FROM celery_outbox_delivery FORCE INDEX (celery_outbox_dlv_task_id)
WHERE task_id IN (%s)
  AND due_at IS NOT NULL
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6));
COMMIT;

-- look: The first statement of each check-in: slots, members, pause.
SELECT relay_id, slot,
    CASE WHEN expires_at > UTC_TIMESTAMP(6) AND expires_at < UTC_TIMESTAMP(6) + INTERVAL ROUND(CASE WHEN slot IS NULL THEN 21675.0 ELSE 75.0 END * 1000000) MICROSECOND THEN 1 ELSE 0 END,
    -(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), last_seen) / 1000000e0), standbys,
    CASE WHEN first_end < UTC_TIMESTAMP(6) + INTERVAL ROUND(-3600.0 * 1000000) MICROSECOND OR last_end > UTC_TIMESTAMP(6) + INTERVAL ROUND(21675.0 * 1000000) MICROSECOND THEN 1 ELSE 0 END,
    reason, paused_by,
    -(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), paused_at) / 1000000e0) AS paused_for
FROM (
    SELECT max(CASE WHEN seen_at <= UTC_TIMESTAMP(6) AND state <> 'stopped' THEN seen_at END) AS last_seen,
        sum(CASE WHEN expires_at > UTC_TIMESTAMP(6) AND state = 'standing by' AND relay_id <> %s THEN 1 ELSE 0 END) AS standbys,
        min(expires_at) AS first_end, max(expires_at) AS last_end
    FROM celery_outbox_relay
) AS fleet
LEFT JOIN celery_outbox_pause ON name = ''
LEFT JOIN celery_outbox_relay ON slot IS NOT NULL OR relay_id = %s;

-- first check-in: After the look; a new member takes a free slot.
INSERT INTO celery_outbox_relay (relay_id, started_at, worker, version, state, rate, counters,
    last_error, slot, seen_at, expires_at, turn_at)
VALUES (%s, UTC_TIMESTAMP(6), %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(6),
    UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND,
    UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND);
UPDATE celery_outbox_relay
SET worker = %s, version = %s, state = %s, rate = %s, counters = %s, last_error = %s, slot = %s,
    seen_at = UTC_TIMESTAMP(6),
    expires_at = UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND, turn_at = NULL
WHERE relay_id = %s;

-- check-in with a slot: After the look, every few seconds.
UPDATE celery_outbox_relay
SET worker = %s, version = %s, state = %s, rate = %s, counters = %s, last_error = %s, slot = %s,
    seen_at = UTC_TIMESTAMP(6),
    expires_at = UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND, turn_at = NULL
WHERE relay_id = %s;

-- check-in without a slot: After the look; once per second, of all together.
SELECT min(CASE WHEN turn >= 0 AND (following IS NULL OR following > turn + 1.75) THEN turn END),
    sum(CASE WHEN turn < 0.05 OR seen > -0.05 THEN 1 ELSE 0 END) - 1
FROM (
    SELECT turn, seen, lead(turn) OVER (ORDER BY turn) AS following
    FROM (
        SELECT 0e0 AS turn, 0e0 AS seen UNION ALL
        SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), turn_at) / 1000000e0,
            TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), seen_at) / 1000000e0
        FROM celery_outbox_relay
        WHERE turn_at > UTC_TIMESTAMP(6) + INTERVAL ROUND(-0.05 * 1000000) MICROSECOND
          AND expires_at > UTC_TIMESTAMP(6)
          AND relay_id <> %s
    ) AS turns
) AS ordered;
UPDATE celery_outbox_relay
SET worker = %s, version = %s, state = %s, rate = %s, counters = %s, last_error = %s, slot = %s,
    seen_at = UTC_TIMESTAMP(6),
    expires_at = UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND,
    turn_at = UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND
WHERE relay_id = %s;

-- check-in after a silence: After the look; those who were alive still are.
UPDATE celery_outbox_relay
SET expires_at = UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND
WHERE state <> 'stopped'
  AND expires_at > UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND
  AND expires_at < UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND;
UPDATE celery_outbox_relay
SET worker = %s, version = %s, state = %s, rate = %s, counters = %s, last_error = %s, slot = %s,
    seen_at = UTC_TIMESTAMP(6),
    expires_at = UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND, turn_at = NULL
WHERE relay_id = %s;

-- check-in in place of a dead member: After the look; old rows are deleted.
INSERT INTO celery_outbox_relay (relay_id, started_at, worker, version, state, rate, counters,
    last_error, slot, seen_at, expires_at, turn_at)
VALUES (%s, UTC_TIMESTAMP(6), %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(6),
    UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND,
    UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND);
UPDATE celery_outbox_relay
SET slot = NULL
WHERE relay_id = %s
  AND slot = %s
  AND NOT (expires_at > UTC_TIMESTAMP(6) AND expires_at < UTC_TIMESTAMP(6) + INTERVAL ROUND(CASE WHEN slot IS NULL THEN 21675.0 ELSE 75.0 END * 1000000) MICROSECOND);
UPDATE celery_outbox_relay
SET worker = %s, version = %s, state = %s, rate = %s, counters = %s, last_error = %s, slot = %s,
    seen_at = UTC_TIMESTAMP(6),
    expires_at = UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND, turn_at = NULL
WHERE relay_id = %s;
DELETE FROM celery_outbox_relay
WHERE expires_at < UTC_TIMESTAMP(6) + INTERVAL ROUND(-3600.0 * 1000000) MICROSECOND OR expires_at > UTC_TIMESTAMP(6) + INTERVAL ROUND(21675.0 * 1000000) MICROSECOND;

-- check out: A relay stops, and learns whom to tell.
UPDATE celery_outbox_relay
SET state = 'stopped', slot = NULL, turn_at = NULL, seen_at = UTC_TIMESTAMP(6),
    expires_at = UTC_TIMESTAMP(6)
WHERE relay_id = %s;
SELECT worker
FROM celery_outbox_relay
WHERE expires_at > UTC_TIMESTAMP(6)
  AND expires_at < UTC_TIMESTAMP(6) + INTERVAL ROUND(CASE WHEN slot IS NULL THEN 21675.0 ELSE 75.0 END * 1000000) MICROSECOND
  AND state = 'standing by'
ORDER BY seen_at DESC
LIMIT 3;

-- fleet: The members that `celery outbox status` and the admin show.
SELECT relay_id, worker, version, state, rate, counters, last_error, slot,
    -(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), started_at) / 1000000e0),
    -(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), seen_at) / 1000000e0),
    CASE WHEN expires_at > UTC_TIMESTAMP(6) AND expires_at < UTC_TIMESTAMP(6) + INTERVAL ROUND(CASE WHEN slot IS NULL THEN 21675.0 ELSE 75.0 END * 1000000) MICROSECOND THEN 1 ELSE 0 END
FROM celery_outbox_relay;
SELECT name, reason, paused_by,
    -(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), paused_at) / 1000000e0) AS paused_for
FROM celery_outbox_pause;

-- pause: Of the outbox, by an operator.
UPDATE celery_outbox_pause
SET reason = %s, paused_by = %s
WHERE name = %s;
INSERT INTO celery_outbox_pause (reason, paused_by, name, paused_at)
VALUES (%s, %s, %s, UTC_TIMESTAMP(6));

-- resume: The end of the pause.
DELETE FROM celery_outbox_pause
WHERE name = %s;

-- sample: The gauges.
SELECT count(*), sum(leased), sum(postponed), sum(late), max(overdue),
    max(CASE WHEN late = 1 THEN age END)
FROM (
    SELECT CASE WHEN claimed_until >= UTC_TIMESTAMP(6) THEN 1 ELSE 0 END AS leased,
        CASE WHEN (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6)) AND (updated_at IS NOT NULL AND (eta IS NULL OR eta <= UTC_TIMESTAMP(6))) THEN 1 ELSE 0 END AS postponed,
        CASE WHEN due_at <= UTC_TIMESTAMP(6) OR (updated_at IS NOT NULL AND (eta IS NULL OR eta <= UTC_TIMESTAMP(6))) THEN 1 ELSE 0 END AS late,
        -(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) / 1000000e0) AS overdue,
        TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0 - COALESCE(TIMESTAMPDIFF(MICROSECOND, created_at, GREATEST(eta, created_at)) / 1000000e0, 0) AS age
    FROM celery_outbox FORCE INDEX (celery_outbox_due)
    WHERE due_at <= UTC_TIMESTAMP(6)
    ORDER BY due_at, id
    LIMIT %s
) AS part;
SELECT count(*), sum(leased), sum(postponed), sum(late), max(overdue),
    max(CASE WHEN late = 1 THEN age END)
FROM (
    SELECT CASE WHEN claimed_until >= UTC_TIMESTAMP(6) THEN 1 ELSE 0 END AS leased,
        CASE WHEN (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6)) AND (updated_at IS NOT NULL AND (eta IS NULL OR eta <= UTC_TIMESTAMP(6))) THEN 1 ELSE 0 END AS postponed,
        CASE WHEN due_at <= UTC_TIMESTAMP(6) OR (updated_at IS NOT NULL AND (eta IS NULL OR eta <= UTC_TIMESTAMP(6))) THEN 1 ELSE 0 END AS late,
        -(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) / 1000000e0) AS overdue,
        TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0 - COALESCE(TIMESTAMPDIFF(MICROSECOND, created_at, GREATEST(eta, created_at)) / 1000000e0, 0) AS age
    FROM celery_outbox FORCE INDEX (celery_outbox_due)
    WHERE due_at > UTC_TIMESTAMP(6)
      AND due_at < '9999-01-01 00:00:00'
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
    SELECT CASE WHEN claimed_until >= UTC_TIMESTAMP(6) THEN 1 ELSE 0 END AS leased,
        CASE WHEN (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6)) AND (updated_at IS NOT NULL AND (eta IS NULL OR eta <= UTC_TIMESTAMP(6))) THEN 1 ELSE 0 END AS postponed,
        CASE WHEN due_at <= UTC_TIMESTAMP(6) OR (updated_at IS NOT NULL AND (eta IS NULL OR eta <= UTC_TIMESTAMP(6))) THEN 1 ELSE 0 END AS late,
        -(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) / 1000000e0) AS overdue,
        TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0 - COALESCE(TIMESTAMPDIFF(MICROSECOND, created_at, GREATEST(eta, created_at)) / 1000000e0, 0) AS age
    FROM celery_outbox FORCE INDEX (celery_outbox_due)
    WHERE due_at <= UTC_TIMESTAMP(6)
    ORDER BY due_at, id
    LIMIT %s
) AS part;
SELECT count(*), sum(leased), sum(postponed), sum(late), max(overdue),
    max(CASE WHEN late = 1 THEN age END)
FROM (
    SELECT CASE WHEN claimed_until >= UTC_TIMESTAMP(6) THEN 1 ELSE 0 END AS leased,
        CASE WHEN (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6)) AND (updated_at IS NOT NULL AND (eta IS NULL OR eta <= UTC_TIMESTAMP(6))) THEN 1 ELSE 0 END AS postponed,
        CASE WHEN due_at <= UTC_TIMESTAMP(6) OR (updated_at IS NOT NULL AND (eta IS NULL OR eta <= UTC_TIMESTAMP(6))) THEN 1 ELSE 0 END AS late,
        -(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) / 1000000e0) AS overdue,
        TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0 - COALESCE(TIMESTAMPDIFF(MICROSECOND, created_at, GREATEST(eta, created_at)) / 1000000e0, 0) AS age
    FROM celery_outbox FORCE INDEX (celery_outbox_due)
    WHERE due_at > UTC_TIMESTAMP(6)
      AND due_at < '9999-01-01 00:00:00'
    ORDER BY due_at, id
    LIMIT %s
) AS part;
SELECT task_name, count(*), max(last_error), sum(count(*)) OVER ()
FROM (
    SELECT *
    FROM (
        SELECT task_name, claimed_by, last_error,
            TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), claimed_until) / 1000000e0 AS seconds_left,
            CASE WHEN claimed_until >= UTC_TIMESTAMP(6) THEN 1 ELSE 0 END AS leased,
            CASE WHEN due_at IS NOT NULL AND retries > 0 THEN 1 ELSE 0 END AS failing
        FROM celery_outbox FORCE INDEX (celery_outbox_due)
        WHERE due_at <= UTC_TIMESTAMP(6)
        ORDER BY due_at DESC, id DESC
        LIMIT %s
    ) AS due UNION ALL
    SELECT *
    FROM (
        SELECT task_name, claimed_by, last_error,
            TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), claimed_until) / 1000000e0 AS seconds_left,
            CASE WHEN claimed_until >= UTC_TIMESTAMP(6) THEN 1 ELSE 0 END AS leased,
            CASE WHEN due_at IS NOT NULL AND retries > 0 THEN 1 ELSE 0 END AS failing
        FROM celery_outbox FORCE INDEX (celery_outbox_due)
        WHERE due_at > UTC_TIMESTAMP(6)
          AND due_at < '9999-01-01 00:00:00'
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
        TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), claimed_until) / 1000000e0 AS seconds_left,
        CASE WHEN claimed_until >= UTC_TIMESTAMP(6) THEN 1 ELSE 0 END AS leased,
        CASE WHEN due_at IS NOT NULL AND retries > 0 THEN 1 ELSE 0 END AS failing
    FROM celery_outbox FORCE INDEX (celery_outbox_due)
    WHERE due_at IS NOT NULL
    ORDER BY due_at, id
    LIMIT %s
) AS pending
WHERE leased = 1
GROUP BY claimed_by
ORDER BY 2 DESC, 1;

-- charts: The charts of the admin.
SELECT ago, published, count(*)
FROM (
    SELECT round(TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0 / 60 - 0.5) AS ago,
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
    SELECT round(TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0 / 60 - 0.5) AS ago,
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
    SELECT round(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) / 1000000e0 / 60 - 0.5) AS ahead,
        CASE WHEN due_at > UTC_TIMESTAMP(6) AND due_at < '9999-01-01 00:00:00' AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6)) AND (updated_at IS NULL OR eta > UTC_TIMESTAMP(6)) THEN 1 ELSE 0 END AS scheduled
    FROM celery_outbox FORCE INDEX (celery_outbox_due)
    WHERE due_at > UTC_TIMESTAMP(6)
      AND due_at < '9999-01-01 00:00:00'
      AND due_at < UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND
    ORDER BY due_at, id
    LIMIT %s
) AS minutes
GROUP BY ahead, scheduled;

-- list dead letters: `celery outbox dead`.
SELECT id, coalesce(kind, 'message'), task_id, task_name,
    DATE_FORMAT(dead_at, '%Y-%m-%dT%H:%i:%s.%f+00:00'),
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), dead_at) / 1000000e0, retries,
    substr(failure_reason, 1, %s), destination
FROM celery_outbox_dead_letter
WHERE CAST(task_name AS BINARY) LIKE CAST(%s AS BINARY) ESCAPE '!'
  AND coalesce(kind, 'message') = %s
ORDER BY id DESC
LIMIT %s;

-- count dead letters: Before a replay or a purge.
SELECT count(*)
FROM celery_outbox_dead_letter
WHERE CAST(task_name AS BINARY) LIKE CAST(%s AS BINARY) ESCAPE '!'
  AND dead_at >= UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND;

-- replay: Move dead letters back into the outbox.
BEGIN;
SELECT id
FROM celery_outbox_dead_letter
WHERE CAST(task_name AS BINARY) LIKE CAST(%s AS BINARY) ESCAPE '!'
  AND dead_at >= UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND
ORDER BY id
LIMIT %s
FOR UPDATE SKIP LOCKED;
INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, payload, redacted_args,
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, eta, created_at,
    schema_version, retries, due_at)
SELECT task_id, task_name, args, kwargs, options, payload, redacted_args, redacted_kwargs,
    sentry_trace_id, sentry_baggage, structlog_context, eta, UTC_TIMESTAMP(6), schema_version,
    0, UTC_TIMESTAMP(6)
FROM celery_outbox_dead_letter FORCE INDEX (PRIMARY)
WHERE id IN (%s, %s)
  AND destination IS NULL
ORDER BY id;
INSERT INTO celery_outbox_delivery (task_id, task_name, args, kwargs, options, payload,
    redacted_args, redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, eta,
    created_at, schema_version, retries, destination, order_key, id, due_at)
SELECT task_id, task_name, args, kwargs, options, payload, redacted_args, redacted_kwargs,
    sentry_trace_id, sentry_baggage, structlog_context, eta, UTC_TIMESTAMP(6), schema_version,
    0, destination, order_key, position, UTC_TIMESTAMP(6)
FROM celery_outbox_dead_letter FORCE INDEX (PRIMARY)
WHERE id IN (%s, %s)
  AND destination IS NOT NULL
ORDER BY id;
DELETE target
FROM JSON_TABLE(%s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS chosen
STRAIGHT_JOIN celery_outbox_dead_letter AS target FORCE INDEX (PRIMARY)
WHERE target.id = chosen.id;
COMMIT;

-- purge dead letters: Delete old dead letters.
SELECT id, destination, order_key
FROM celery_outbox_dead_letter
WHERE dead_at < UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND
ORDER BY dead_at, id
LIMIT %s;
DELETE target
FROM JSON_TABLE(%s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS chosen
STRAIGHT_JOIN celery_outbox_dead_letter AS target FORCE INDEX (PRIMARY)
WHERE target.id = chosen.id;

-- count published: Before a purge.
SELECT destination
FROM celery_outbox_delivery FORCE INDEX (celery_outbox_dlv_due)
WHERE destination > %s
ORDER BY destination
LIMIT 1;
SELECT count(*)
FROM celery_outbox
WHERE due_at IS NULL
  AND published_at < UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND;

-- purge published: Delete old published rows.
SELECT destination
FROM celery_outbox_delivery FORCE INDEX (celery_outbox_dlv_due)
WHERE destination > %s
ORDER BY destination
LIMIT 1;
SELECT id
FROM celery_outbox FORCE INDEX (celery_outbox_due)
WHERE due_at IS NULL
  AND published_at < UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND
ORDER BY due_at, id
LIMIT %s;
DELETE target
FROM JSON_TABLE(%s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS chosen
STRAIGHT_JOIN celery_outbox AS target FORCE INDEX (PRIMARY)
WHERE target.id = chosen.id
  AND due_at IS NULL;

-- keep failed task: A task failed for good, in its worker.
INSERT INTO celery_outbox_dead_letter (task_id, task_name, args, kwargs, options, payload,
    redacted_args, redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context,
    schema_version, created_at, dead_at, retries, failure_reason, traceback, kind)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), %s,
    %s, %s, 'task');

-- once: `@once`: an entry before the work, and the result after it.
INSERT INTO celery_outbox_inbox (inbox_key, task_name, created_at, expires_at, duplicates)
VALUES (%s, %s, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND,
    0)
ON DUPLICATE KEY UPDATE duplicates = celery_outbox_inbox.duplicates + 1
RETURNING duplicates, content_type, content_encoding, result;
UPDATE celery_outbox_inbox
SET content_type = %s, content_encoding = %s, result = %s
WHERE inbox_key = %s;

-- once, a duplicate: The same statement waits for the first, and gets its result.
INSERT INTO celery_outbox_inbox (inbox_key, task_name, created_at, expires_at, duplicates)
VALUES (%s, %s, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND,
    0)
ON DUPLICATE KEY UPDATE duplicates = celery_outbox_inbox.duplicates + 1
RETURNING duplicates, content_type, content_encoding, result;

-- count inbox entries: Before a purge.
SELECT count(*)
FROM celery_outbox_inbox
WHERE expires_at < UTC_TIMESTAMP(6);

-- purge inbox entries: Delete entries that have expired.
SELECT inbox_key
FROM celery_outbox_inbox
WHERE expires_at < UTC_TIMESTAMP(6)
ORDER BY expires_at
LIMIT %s;
DELETE entry
FROM celery_outbox_inbox AS entry FORCE INDEX (PRIMARY)
WHERE inbox_key IN (%s)
  AND expires_at < UTC_TIMESTAMP(6);

-- lock order keys: Before events with a key.
SELECT id
FROM celery_outbox_order_lock
WHERE id IN (%s, %s)
ORDER BY id
FOR UPDATE;

-- enqueue an event: A row for each destination, here one.
INSERT INTO celery_outbox_delivery (task_id, task_name, args, kwargs, options, payload,
    redacted_args, redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context,
    destination, order_key, schema_version, created_at, due_at, retries)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(6),
    UTC_TIMESTAMP(6), 0);

-- enqueue events: For two destinations, or of a bulk.
INSERT INTO celery_outbox_delivery (task_id, task_name, args, kwargs, options, payload,
    redacted_args, redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context,
    destination, order_key, schema_version, created_at, due_at, retries)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(6),
    UTC_TIMESTAMP(6), 0), (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
    UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0);

-- claim for a destination: Lease due rows of it.
BEGIN;
SELECT due_at, LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0),
    id, task_id, task_name,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN args ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN kwargs ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN options ELSE '' END,
    CASE WHEN (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) <= %s THEN payload END,
    retries, schema_version, sentry_trace_id, sentry_baggage, structlog_context,
    DATE_FORMAT(eta, '%Y-%m-%dT%H:%i:%s.%f+00:00'),
    TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0,
    COALESCE(TIMESTAMPDIFF(MICROSECOND, created_at, GREATEST(eta, created_at)) / 1000000e0, 0),
    updated_at IS NOT NULL, COALESCE(claimed_by <> %s, 0),
    (LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)) > %s,
    order_key
FROM celery_outbox_delivery FORCE INDEX (celery_outbox_dlv_due)
WHERE destination = %s
  AND due_at <= UTC_TIMESTAMP(6)
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6))
  AND schema_version IN (%s, %s)
ORDER BY due_at, id
LIMIT %s
FOR UPDATE SKIP LOCKED;
UPDATE celery_outbox_delivery FORCE INDEX (PRIMARY)
SET claimed_by = %s, claimed_until = UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND
WHERE id IN (%s);
COMMIT;

-- find what has to wait: After a claim of rows with a key: by key, the first row that they wait for.
SELECT mine.order_key, (
    SELECT other.id
    FROM celery_outbox_delivery AS other FORCE INDEX (celery_outbox_dlv_order)
    WHERE other.destination = %s
      AND other.order_key = mine.order_key
      AND (other.claimed_by IS NULL OR other.claimed_by <> %s OR NOT other.id IN (%s, %s))
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
    FROM celery_outbox_delivery FORCE INDEX (PRIMARY)
    WHERE id IN (%s, %s)
) AS mine;

-- hold back: What has to wait is given back, due at no time; and the first row of its key?
UPDATE celery_outbox_delivery FORCE INDEX (PRIMARY)
SET due_at = '9999-01-01 00:00:00', claimed_by = %s, claimed_until = NULL
WHERE id IN (%s, %s)
  AND claimed_by = %s;
SELECT %s, MIN(id)
FROM celery_outbox_delivery FORCE INDEX (celery_outbox_dlv_order)
WHERE destination = %s
  AND order_key = %s;
SELECT id
FROM celery_outbox_delivery FORCE INDEX (PRIMARY)
WHERE id IN (%s)
  AND due_at >= '9999-01-01 00:00:00'
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6));

-- settle and release the next: With a key: the next row of it is due.
DELETE target
FROM JSON_TABLE(%s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS chosen
STRAIGHT_JOIN celery_outbox_delivery AS target FORCE INDEX (PRIMARY)
WHERE target.id = chosen.id
  AND (claimed_by = %s OR claimed_by IS NULL OR claimed_by = '')
  AND due_at IS NOT NULL;
SELECT %s, MIN(id)
FROM celery_outbox_delivery FORCE INDEX (celery_outbox_dlv_order)
WHERE destination = %s
  AND order_key = %s;
SELECT id
FROM celery_outbox_delivery FORCE INDEX (PRIMARY)
WHERE id IN (%s)
  AND due_at >= '9999-01-01 00:00:00'
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6));
SELECT order_key, min(position)
FROM celery_outbox_dead_letter
WHERE destination = %s
  AND order_key IN (%s)
GROUP BY order_key;
SELECT id
FROM celery_outbox_delivery FORCE INDEX (celery_outbox_dlv_order)
WHERE destination = %s
  AND order_key = %s
  AND id >= %s
ORDER BY id
LIMIT %s;
BEGIN;
SELECT id
FROM celery_outbox_delivery FORCE INDEX (PRIMARY)
WHERE id IN (%s, %s)
  AND due_at >= '9999-01-01 00:00:00'
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6))
FOR UPDATE SKIP LOCKED;
UPDATE celery_outbox_delivery FORCE INDEX (PRIMARY)
SET due_at = UTC_TIMESTAMP(6)
WHERE id IN (%s, %s);
COMMIT;

-- look after: Rows that a relay which died left held back.
SELECT id, order_key
FROM celery_outbox_delivery FORCE INDEX (celery_outbox_dlv_due)
WHERE destination = %s
  AND due_at = '9999-01-01 00:00:00'
  AND id > %s
  AND due_at >= '9999-01-01 00:00:00'
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6))
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
    destination, order_key, id, %s, UTC_TIMESTAMP(6), %s
FROM celery_outbox_delivery FORCE INDEX (PRIMARY)
WHERE id IN (%s)
  AND claimed_by = %s
FOR UPDATE;
DELETE target
FROM JSON_TABLE(%s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS chosen
STRAIGHT_JOIN celery_outbox_delivery AS target FORCE INDEX (PRIMARY)
WHERE target.id = chosen.id
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
    sentry_trace_id, sentry_baggage, structlog_context, eta, UTC_TIMESTAMP(6), schema_version,
    0, UTC_TIMESTAMP(6)
FROM celery_outbox_dead_letter FORCE INDEX (PRIMARY)
WHERE id IN (%s)
  AND destination IS NULL
ORDER BY id;
INSERT INTO celery_outbox_delivery (task_id, task_name, args, kwargs, options, payload,
    redacted_args, redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, eta,
    created_at, schema_version, retries, destination, order_key, id, due_at)
SELECT task_id, task_name, args, kwargs, options, payload, redacted_args, redacted_kwargs,
    sentry_trace_id, sentry_baggage, structlog_context, eta, UTC_TIMESTAMP(6), schema_version,
    0, destination, order_key, position, UTC_TIMESTAMP(6)
FROM celery_outbox_dead_letter FORCE INDEX (PRIMARY)
WHERE id IN (%s)
  AND destination IS NOT NULL
ORDER BY id;
DELETE target
FROM JSON_TABLE(%s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS chosen
STRAIGHT_JOIN celery_outbox_dead_letter AS target FORCE INDEX (PRIMARY)
WHERE target.id = chosen.id;
COMMIT;

-- first use of a rate: Its row is written.
BEGIN;
SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), used_until) / 1000000e0,
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), planned_until) / 1000000e0
FROM celery_outbox_rate
WHERE name = %s
FOR UPDATE;
COMMIT;
INSERT INTO celery_outbox_rate (name, per_second, used_until, planned_until)
VALUES (%s, %s, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND);
BEGIN;
SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), used_until) / 1000000e0,
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), planned_until) / 1000000e0
FROM celery_outbox_rate
WHERE name = %s
FOR UPDATE;
SELECT id
FROM celery_outbox FORCE INDEX (PRIMARY)
WHERE id IN (%s)
  AND claimed_by = %s
  AND paced IS NOT NULL;
UPDATE celery_outbox_rate
SET used_until = used_until + INTERVAL ROUND(%s * 1000000) MICROSECOND,
    planned_until = planned_until + INTERVAL ROUND(%s * 1000000) MICROSECOND
WHERE name = %s;
COMMIT;

-- pace: Take turns; give back what exceeds the rate.
BEGIN;
SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), used_until) / 1000000e0,
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), planned_until) / 1000000e0
FROM celery_outbox_rate
WHERE name = %s
FOR UPDATE;
SELECT id
FROM celery_outbox FORCE INDEX (PRIMARY)
WHERE id IN (%s, %s)
  AND claimed_by = %s
  AND paced IS NOT NULL;
UPDATE celery_outbox_rate
SET used_until = used_until + INTERVAL ROUND(%s * 1000000) MICROSECOND,
    planned_until = planned_until + INTERVAL ROUND(%s * 1000000) MICROSECOND
WHERE name = %s;
UPDATE celery_outbox FORCE INDEX (PRIMARY)
SET due_at = UTC_TIMESTAMP(6) + INTERVAL ROUND(CASE id WHEN %s THEN %s END * 1000000) MICROSECOND,
    paced = (1 = 1), claimed_by = %s, claimed_until = NULL
WHERE id IN (%s)
  AND claimed_by = %s;
COMMIT;

-- rates: For `celery outbox status`.
SELECT name, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), planned_until) / 1000000e0
FROM celery_outbox_rate
ORDER BY name;

-- use other rates: When a relay begins to work.
SELECT name, per_second
FROM celery_outbox_rate;
BEGIN;
SELECT id
FROM celery_outbox FORCE INDEX (PRIMARY)
WHERE id > %s
  AND paced IS NOT NULL
  AND due_at > UTC_TIMESTAMP(6)
  AND due_at < '9999-01-01 00:00:00'
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6))
  AND updated_at IS NULL
ORDER BY id
LIMIT %s
FOR UPDATE SKIP LOCKED;
UPDATE celery_outbox FORCE INDEX (PRIMARY)
SET due_at = UTC_TIMESTAMP(6), paced = NULL
WHERE id IN (%s);
COMMIT;
BEGIN;
SELECT id
FROM celery_outbox FORCE INDEX (PRIMARY)
WHERE id > %s
  AND paced IS NOT NULL
  AND due_at > UTC_TIMESTAMP(6)
  AND due_at < '9999-01-01 00:00:00'
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6))
  AND updated_at IS NULL
ORDER BY id
LIMIT %s
FOR UPDATE SKIP LOCKED;
COMMIT;
BEGIN;
SELECT id
FROM celery_outbox_delivery FORCE INDEX (PRIMARY)
WHERE id > %s
  AND paced IS NOT NULL
  AND due_at > UTC_TIMESTAMP(6)
  AND due_at < '9999-01-01 00:00:00'
  AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6))
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
    SELECT CASE WHEN claimed_until >= UTC_TIMESTAMP(6) THEN 1 ELSE 0 END AS leased,
        CASE WHEN (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6)) AND (updated_at IS NOT NULL AND (eta IS NULL OR eta <= UTC_TIMESTAMP(6))) THEN 1 ELSE 0 END AS postponed,
        CASE WHEN due_at <= UTC_TIMESTAMP(6) OR (updated_at IS NOT NULL AND (eta IS NULL OR eta <= UTC_TIMESTAMP(6))) THEN 1 ELSE 0 END AS late,
        -(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) / 1000000e0) AS overdue,
        TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0 - COALESCE(TIMESTAMPDIFF(MICROSECOND, created_at, GREATEST(eta, created_at)) / 1000000e0, 0) AS age
    FROM celery_outbox_delivery FORCE INDEX (celery_outbox_dlv_due)
    WHERE destination = %s
      AND due_at <= UTC_TIMESTAMP(6)
    ORDER BY due_at, id
    LIMIT %s
) AS part;
SELECT count(*), sum(leased), sum(postponed), sum(late), max(overdue),
    max(CASE WHEN late = 1 THEN age END)
FROM (
    SELECT CASE WHEN claimed_until >= UTC_TIMESTAMP(6) THEN 1 ELSE 0 END AS leased,
        CASE WHEN (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6)) AND (updated_at IS NOT NULL AND (eta IS NULL OR eta <= UTC_TIMESTAMP(6))) THEN 1 ELSE 0 END AS postponed,
        CASE WHEN due_at <= UTC_TIMESTAMP(6) OR (updated_at IS NOT NULL AND (eta IS NULL OR eta <= UTC_TIMESTAMP(6))) THEN 1 ELSE 0 END AS late,
        -(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) / 1000000e0) AS overdue,
        TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0 - COALESCE(TIMESTAMPDIFF(MICROSECOND, created_at, GREATEST(eta, created_at)) / 1000000e0, 0) AS age
    FROM celery_outbox_delivery FORCE INDEX (celery_outbox_dlv_due)
    WHERE destination = %s
      AND due_at > UTC_TIMESTAMP(6)
      AND due_at < '9999-01-01 00:00:00'
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
    FROM celery_outbox_delivery FORCE INDEX (celery_outbox_dlv_due)
    WHERE destination = %s
      AND due_at >= '9999-01-01 00:00:00'
      AND (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6))
    LIMIT %s
) AS counted;

-- stored destinations: Those that rows are stored for.
SELECT destination
FROM celery_outbox_delivery FORCE INDEX (celery_outbox_dlv_due)
WHERE destination > %s
ORDER BY destination
LIMIT 1;
SELECT destination
FROM celery_outbox_delivery FORCE INDEX (celery_outbox_dlv_due)
WHERE destination > %s
ORDER BY destination
LIMIT 1;

-- pauses: Every few seconds, for all destinations.
SELECT name, reason, paused_by,
    -(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), paused_at) / 1000000e0) AS paused_for
FROM celery_outbox_pause;
