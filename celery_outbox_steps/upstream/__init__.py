"""The private parts of Celery, kombu and py-amqp that the relay uses, a module per library.

A part is private if it has an underscore or is not in the library's documentation. No other module
of this package uses one (ruff: SLF001 and TID251), and each has its reason beside it.
tests/unit/test_upstream.py compares them with Celery 5.4 to 5.7, kombu 5.3 to 5.7 and py-amqp 5.2
to 5.4. Before you change that test, read the code that uses the part again.
"""
