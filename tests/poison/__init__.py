"""One message must not stop the others, nor multiply them.

`poisons.py` is the table of what a single row can provoke; `test_poisons.py` runs each of them
alone and among good messages; `test_outages.py` shows that an outage spends no retry.
"""
