"""Every call twice: directly with plain Celery, and as a row that is published later."""
