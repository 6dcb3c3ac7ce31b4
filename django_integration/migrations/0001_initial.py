"""The two tables, and on PostgreSQL the storage parameters that a queue table needs."""

from typing import Any

from django.db import migrations, models

import django_integration.models

# Room on each page for the claim's HOT update, and a vacuum that follows the deletes closely:
# PostgreSQL's defaults wait for a fifth of the table, which is far too late for a queue.
STORAGE = """
ALTER TABLE celery_outbox SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
)
"""


def tune_storage(_: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(STORAGE)


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="CeleryOutboxDeadLetter",
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
                ("created_at", models.DateTimeField(default=django_integration.models.DatabaseNow)),
                ("retries", models.PositiveIntegerField(default=0)),
                ("schema_version", models.PositiveSmallIntegerField(default=1)),
                ("sentry_trace_id", models.TextField(null=True)),
                ("sentry_baggage", models.TextField(null=True)),
                ("structlog_context", models.TextField(null=True)),
                ("dead_at", models.DateTimeField(default=django_integration.models.DatabaseNow)),
                ("failure_reason", models.TextField()),
            ],
            options={
                "verbose_name": "dead letter",
                "db_table": "celery_outbox_dead_letter",
                "indexes": [
                    models.Index(fields=["dead_at"], name="celery_outbox_dl_dead_at"),
                    models.Index(fields=["task_id"], name="celery_outbox_dl_task_id"),
                ],
            },
        ),
        migrations.CreateModel(
            name="CeleryOutbox",
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
            ],
            options={
                "verbose_name": "outbox message",
                "db_table": "celery_outbox",
                "indexes": [
                    models.Index(fields=["due_at", "id"], name="celery_outbox_due"),
                    models.Index(fields=["task_id"], name="celery_outbox_task_id"),
                ],
            },
        ),
        migrations.RunPython(tune_storage, migrations.RunPython.noop),
    ]
