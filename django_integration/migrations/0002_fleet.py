"""The members of the fleet, and the pause of the outbox. Only adds tables: the release before this
one works on."""

from typing import Any

from django.db import migrations, models

import django_integration.models

# Room on each page for the HOT update of a check-in.
STORAGE = "ALTER TABLE celery_outbox_relay SET (fillfactor = 50)"


def tune_storage(_: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(STORAGE)


class Migration(migrations.Migration):
    dependencies = [
        ("celery_outbox", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="CeleryOutboxPause",
            fields=[
                ("name", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("reason", models.TextField()),
                ("paused_by", models.CharField(max_length=255)),
                ("paused_at", models.DateTimeField(default=django_integration.models.DatabaseNow)),
            ],
            options={
                "verbose_name": "pause",
                "db_table": "celery_outbox_pause",
            },
        ),
        migrations.CreateModel(
            name="CeleryOutboxRelay",
            fields=[
                ("relay_id", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("worker", models.CharField(max_length=255)),
                ("version", models.CharField(max_length=255)),
                ("state", models.CharField(max_length=255)),
                ("slot", models.SmallIntegerField(null=True, unique=True)),
                ("started_at", models.DateTimeField(default=django_integration.models.DatabaseNow)),
                ("seen_at", models.DateTimeField(default=django_integration.models.DatabaseNow)),
                ("expires_at", models.DateTimeField(default=django_integration.models.DatabaseNow)),
                ("turn_at", models.DateTimeField(null=True)),
                ("rate", models.FloatField(default=0.0)),
                ("counters", models.TextField(default="{}")),
                ("last_error", models.TextField(null=True)),
            ],
            options={
                "verbose_name": "relay",
                "db_table": "celery_outbox_relay",
            },
        ),
        migrations.RunPython(tune_storage, migrations.RunPython.noop),
    ]
