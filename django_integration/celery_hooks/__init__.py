"""What an `OutboxCelery` changes in Celery, one file each: tasks, result backends, settings."""
