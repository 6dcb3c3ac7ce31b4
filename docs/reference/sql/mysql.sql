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
    TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0,
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
    TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0,
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
    TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0,
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
    TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0,
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
    TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0,
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
  AND (claimed_by = %s OR claimed_by IS NULL OR claimed_by = '')
  AND due_at IS NOT NULL;

-- settle published, kept: Keep published rows.
BEGIN;
UPDATE celery_outbox FORCE INDEX (PRIMARY)
SET published_at = UTC_TIMESTAMP(6), updated_at = UTC_TIMESTAMP(6), due_at = NULL,
    claimed_by = NULL, claimed_until = NULL, retries = %s, last_error = NULL
WHERE id IN (%s, %s)
  AND (claimed_by = %s OR claimed_by IS NULL OR claimed_by = '')
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
    redacted_args, redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context,
    created_at, schema_version, retries, dead_at, failure_reason)
SELECT task_id, task_name, args, kwargs, options, payload, redacted_args, redacted_kwargs,
    sentry_trace_id, sentry_baggage, structlog_context, created_at, schema_version, %s,
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

-- sample: The gauges.
SELECT count(*), max(waited)
FROM (
    SELECT task_name, claimed_by, last_error,
        TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0 AS waited,
        TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), claimed_until) / 1000000e0 AS seconds_left,
        CASE WHEN claimed_until >= UTC_TIMESTAMP(6) THEN 1 ELSE 0 END AS leased,
        CASE WHEN due_at IS NOT NULL AND retries > 0 THEN 1 ELSE 0 END AS failing
    FROM celery_outbox FORCE INDEX (celery_outbox_due)
    WHERE due_at IS NOT NULL
    ORDER BY due_at, id
    LIMIT %s
) AS pending;
SELECT count(*)
FROM (
    SELECT 1 AS one
    FROM celery_outbox_dead_letter
    LIMIT %s
) AS counted;

-- stats: The numbers of `celery outbox status` and the admin.
SELECT count(*), sum(leased), sum(attempted), max(overdue)
FROM (
    SELECT CASE WHEN claimed_until >= UTC_TIMESTAMP(6) THEN 1 ELSE 0 END AS leased,
        CASE WHEN (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6)) AND updated_at IS NOT NULL THEN 1 ELSE 0 END AS attempted,
        -(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) / 1000000e0) AS overdue
    FROM celery_outbox FORCE INDEX (celery_outbox_due)
    WHERE due_at <= UTC_TIMESTAMP(6)
    ORDER BY due_at, id
    LIMIT %s
) AS part;
SELECT count(*), sum(leased), sum(attempted), max(overdue)
FROM (
    SELECT CASE WHEN claimed_until >= UTC_TIMESTAMP(6) THEN 1 ELSE 0 END AS leased,
        CASE WHEN (claimed_until IS NULL OR claimed_until < UTC_TIMESTAMP(6)) AND updated_at IS NOT NULL THEN 1 ELSE 0 END AS attempted,
        -(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) / 1000000e0) AS overdue
    FROM celery_outbox FORCE INDEX (celery_outbox_due)
    WHERE due_at > UTC_TIMESTAMP(6)
    ORDER BY due_at, id
    LIMIT %s
) AS part;
SELECT task_name, count(*), max(last_error), sum(count(*)) OVER ()
FROM (
    SELECT task_name, claimed_by, last_error,
        TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0 AS waited,
        TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), claimed_until) / 1000000e0 AS seconds_left,
        CASE WHEN claimed_until >= UTC_TIMESTAMP(6) THEN 1 ELSE 0 END AS leased,
        CASE WHEN due_at IS NOT NULL AND retries > 0 THEN 1 ELSE 0 END AS failing
    FROM celery_outbox FORCE INDEX (celery_outbox_due)
    WHERE due_at IS NOT NULL
    ORDER BY due_at DESC, id DESC
    LIMIT %s
) AS pending
WHERE failing = 1
GROUP BY task_name
ORDER BY 2 DESC, 1
LIMIT %s;
SELECT count(*)
FROM (
    SELECT 1 AS one
    FROM celery_outbox_dead_letter
    LIMIT %s
) AS counted;
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
        TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0 AS waited,
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
    redacted_kwargs, sentry_trace_id, sentry_baggage, structlog_context, created_at,
    schema_version, retries, due_at)
SELECT task_id, task_name, args, kwargs, options, payload, redacted_args, redacted_kwargs,
    sentry_trace_id, sentry_baggage, structlog_context, UTC_TIMESTAMP(6), schema_version, 0,
    UTC_TIMESTAMP(6)
FROM celery_outbox_dead_letter FORCE INDEX (PRIMARY)
WHERE id IN (%s, %s)
ORDER BY id;
DELETE target
FROM JSON_TABLE(%s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS chosen
STRAIGHT_JOIN celery_outbox_dead_letter AS target FORCE INDEX (PRIMARY)
WHERE target.id = chosen.id;
COMMIT;

-- purge dead letters: Delete old dead letters.
SELECT id
FROM celery_outbox_dead_letter
WHERE dead_at < UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND
ORDER BY dead_at, id
LIMIT %s;
DELETE target
FROM JSON_TABLE(%s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS chosen
STRAIGHT_JOIN celery_outbox_dead_letter AS target FORCE INDEX (PRIMARY)
WHERE target.id = chosen.id;

-- count published: Before a purge.
SELECT count(*)
FROM celery_outbox
WHERE due_at IS NULL
  AND published_at < UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND;

-- purge published: Delete old published rows.
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
