"""Canvas through the outbox: each scenario runs on plain Celery and on OutboxCelery, compared.

`project.py` has the tasks, the same for both; `conftest.py` starts one real worker for each app,
for every pool and result backend; `test_canvas.py` has the scenarios.
"""
