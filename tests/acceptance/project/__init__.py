"""The Django + Celery project that the acceptance tests' workers run."""
