"""The inbox, keys of calls, and dead letters of tasks that failed. Only adds tables and nullable
columns: the release before this one works on."""

from typing import Any

from django.db import migrations, models

import django_integration.models

# PostgreSQL and SQLite leave rows without a key out of the index: they cost nothing. MySQL has no
# such index; NULLs are never equal there, so that many rows may have none.
KEY_INDEX = {
    "postgresql": " WHERE outbox_key IS NOT NULL",
    "sqlite": " WHERE outbox_key IS NOT NULL",
    "mysql": "",
}


def create_key_index(_: Any, schema_editor: Any) -> None:
    condition = KEY_INDEX[schema_editor.connection.vendor]
    schema_editor.execute(
        f"CREATE UNIQUE INDEX celery_outbox_key ON celery_outbox (outbox_key){condition}"
    )


def drop_key_index(_: Any, schema_editor: Any) -> None:
    table = " ON celery_outbox" if schema_editor.connection.vendor == "mysql" else ""
    schema_editor.execute(f"DROP INDEX celery_outbox_key{table}")


class Migration(migrations.Migration):
    dependencies = [
        ("celery_outbox", "0003_eta"),
    ]

    operations = [
        migrations.CreateModel(
            name="CeleryOutboxInbox",
            fields=[
                ("inbox_key", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("task_name", models.CharField(max_length=255)),
                ("created_at", models.DateTimeField(default=django_integration.models.DatabaseNow)),
                ("expires_at", models.DateTimeField()),
                ("duplicates", models.PositiveIntegerField(default=0)),
                ("content_type", models.CharField(max_length=255, null=True)),
                ("content_encoding", models.CharField(max_length=255, null=True)),
                ("result", models.BinaryField(null=True)),
            ],
            options={
                "verbose_name": "inbox entry",
                "verbose_name_plural": "inbox entries",
                "db_table": "celery_outbox_inbox",
                "indexes": [
                    models.Index(fields=["expires_at"], name="celery_outbox_inbox_expires")
                ],
            },
        ),
        migrations.AddField(
            "celeryoutbox", "outbox_key", models.CharField(max_length=255, null=True)
        ),
        migrations.AddField(
            "celeryoutboxdeadletter", "kind", models.CharField(max_length=255, null=True)
        ),
        migrations.AddField("celeryoutboxdeadletter", "traceback", models.TextField(null=True)),
        # Django is told of a constraint without a condition: SQLite's tables are rebuilt by later
        # migrations from what Django knows, and MySQL would warn of a condition that it ignores.
        migrations.SeparateDatabaseAndState(
            [migrations.RunPython(create_key_index, drop_key_index)],
            [
                migrations.AddConstraint(
                    "celeryoutbox",
                    models.UniqueConstraint(fields=["outbox_key"], name="celery_outbox_key"),
                )
            ],
        ),
    ]
