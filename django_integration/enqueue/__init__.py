"""The enqueue side: a task call becomes a row in the caller's transaction.

A call enters in `app.py` above; `capture` takes Celery's message, `enqueuer` decides and stores,
and `rows` writes. The other modules serve these: bulk, transactions, commit hooks, redaction.
"""
