"""Messages for destinations, and release rates. Only adds tables and nullable columns: the release
before this one works on, and does not touch messages for destinations."""

from typing import Any

from django.db import migrations, models

import django_integration.models

# As for the outbox itself: see 0001_initial.
STORAGE = """
ALTER TABLE celery_outbox_delivery SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
)
"""
# Few messages have a key. MySQL has no index without the others.
ORDER_INDEXES = {
    "celery_outbox_dlv_order": "celery_outbox_delivery (destination, order_key, id)",
    "celery_outbox_dl_order": "celery_outbox_dead_letter (destination, order_key)",
}
# Rows to lock while an order key is in use: MySQL has no other lock that ends with a transaction.
ORDER_LOCKS = 16_384


def tune_storage(_: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(STORAGE)


def create_order_indexes(_: Any, schema_editor: Any) -> None:
    condition = "" if schema_editor.connection.vendor == "mysql" else " WHERE order_key IS NOT NULL"
    for name, columns in ORDER_INDEXES.items():
        schema_editor.execute(f"CREATE INDEX {name} ON {columns}{condition}")


def drop_order_indexes(_: Any, schema_editor: Any) -> None:
    for name, columns in ORDER_INDEXES.items():
        table = f" ON {columns.split()[0]}" if schema_editor.connection.vendor == "mysql" else ""
        schema_editor.execute(f"DROP INDEX {name}{table}")


def create_order_locks(_: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor != "mysql":
        return
    # May be repeated: if the migration fails, what MySQL has made so far is not undone.
    create = "CREATE TABLE IF NOT EXISTS celery_outbox_order_lock (id integer PRIMARY KEY)"
    schema_editor.execute(create)
    for start in range(0, ORDER_LOCKS, 1024):
        values = ", ".join(f"({number})" for number in range(start, start + 1024))
        insert = f"INSERT IGNORE INTO celery_outbox_order_lock (id) VALUES {values}"  # noqa: S608  numbers
        schema_editor.execute(insert)


def drop_order_locks(_: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "mysql":
        schema_editor.execute("DROP TABLE IF EXISTS celery_outbox_order_lock")


class Migration(migrations.Migration):
    dependencies = [
        ("celery_outbox", "0004_once"),
    ]

    operations = [
        migrations.RunPython(create_order_locks, drop_order_locks, atomic=False),
        migrations.CreateModel(
            name="CeleryOutboxDelivery",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("task_id", models.CharField(max_length=255)),
                ("task_name", models.CharField(max_length=255)),
                ("args", models.TextField()),
                ("kwargs", models.TextField()),
                ("options", models.TextField()),
                ("payload", models.BinaryField(null=True)),
                ("redacted_args", models.TextField(null=True)),
                ("redacted_kwargs", models.TextField(null=True)),
                ("eta", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(default=django_integration.models.DatabaseNow)),
                ("retries", models.PositiveIntegerField(default=0)),
                ("schema_version", models.PositiveSmallIntegerField(default=1)),
                ("sentry_trace_id", models.TextField(null=True)),
                ("sentry_baggage", models.TextField(null=True)),
                ("structlog_context", models.TextField(null=True)),
                (
                    "due_at",
                    models.DateTimeField(default=django_integration.models.DatabaseNow, null=True),
                ),
                ("updated_at", models.DateTimeField(null=True)),
                ("claimed_by", models.CharField(max_length=255, null=True)),
                ("claimed_until", models.DateTimeField(null=True)),
                ("last_error", models.TextField(null=True)),
                ("published_at", models.DateTimeField(null=True)),
                ("paced", models.BooleanField(null=True)),
                ("destination", models.CharField(max_length=255)),
                ("order_key", models.CharField(max_length=255, null=True)),
            ],
            options={
                "verbose_name": "message for a destination",
                "verbose_name_plural": "messages for destinations",
                "db_table": "celery_outbox_delivery",
                "indexes": [
                    models.Index(
                        fields=["destination", "due_at", "id"], name="celery_outbox_dlv_due"
                    ),
                    models.Index(fields=["task_id"], name="celery_outbox_dlv_task_id"),
                ],
            },
        ),
        migrations.CreateModel(
            name="CeleryOutboxRate",
            fields=[
                ("name", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("per_second", models.FloatField()),
                ("used_until", models.DateTimeField(default=django_integration.models.DatabaseNow)),
                (
                    "planned_until",
                    models.DateTimeField(default=django_integration.models.DatabaseNow),
                ),
            ],
            options={
                "verbose_name": "release rate",
                "db_table": "celery_outbox_rate",
            },
        ),
        migrations.AddField("celeryoutbox", "paced", models.BooleanField(null=True)),
        migrations.AddField(
            "celeryoutboxdeadletter", "destination", models.CharField(max_length=255, null=True)
        ),
        migrations.AddField(
            "celeryoutboxdeadletter", "order_key", models.CharField(max_length=255, null=True)
        ),
        migrations.AddField(
            "celeryoutboxdeadletter", "position", models.BigIntegerField(null=True)
        ),
        # Django is told of indexes without a condition, for the reasons in 0004_once.
        migrations.SeparateDatabaseAndState(
            [migrations.RunPython(create_order_indexes, drop_order_indexes)],
            [
                migrations.AddIndex(
                    "celeryoutboxdelivery",
                    models.Index(
                        fields=["destination", "order_key", "id"], name="celery_outbox_dlv_order"
                    ),
                ),
                migrations.AddIndex(
                    "celeryoutboxdeadletter",
                    models.Index(
                        fields=["destination", "order_key"], name="celery_outbox_dl_order"
                    ),
                ),
            ],
        ),
        migrations.RunPython(tune_storage, migrations.RunPython.noop),
    ]
