"""The wanted time of a held call. Only adds nullable columns: the release before this one works on,
and publishes held calls when they are due."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("celery_outbox", "0002_fleet"),
    ]

    operations = [
        migrations.AddField("celeryoutbox", "eta", models.DateTimeField(null=True)),
        migrations.AddField("celeryoutboxdeadletter", "eta", models.DateTimeField(null=True)),
    ]
