"""The private parts of Celery and Django that the Django side uses, a module per library.

Private is what has an underscore or is not in the library's documentation. Nothing else in this
package touches any of it (ruff: SLF001 and TID251), and everything here has the reason beside it.
tests/unit/test_upstream.py compares it with Celery 5.4 to 5.7 and Django 4.2 to 6.1: read what uses
a part again before you change that test.
"""
