"""The private parts of Celery and Django that the Django side uses, a module per library.

Private is what has an underscore or is not in the library's documentation. No other module of this
package uses it (ruff: SLF001 and TID251), and everything here has its reason beside it.
tests/unit/test_upstream.py checks it against Celery 5.4 to 5.7 and Django 4.2 to 6.1: before you
change that test, read the code that uses the changed part.
"""
