"""`make demo`: the story of an outbox, told with real parts. See `__main__.py`."""
