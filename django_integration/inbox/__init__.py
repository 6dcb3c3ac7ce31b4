"""The inbox: work that must not be done twice, recorded in the transaction that did it.

`once.py` is what projects use, `entries.py` the rows and their transaction, `results.py` the stored
return values. Nothing here knows the outbox: a task may be protected in any database that has the
tables.
"""
