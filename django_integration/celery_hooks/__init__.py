"""What an `OutboxCelery` changes in Celery, one module each: tasks, result backends, settings.

`app.py` installs all three. What they use of Celery's private parts is in
`upstream/celery.py`; nothing here writes rows.
"""
