"""Keys of calls and of protected work as their columns hold them: readable, short, and exact.

MySQL compares text without regard to case and to spaces at its end, columns have a length, and some
databases hold ASCII only. So a column holds the beginning of the key and a digest of all of it: two
stored keys are equal, in every database, only if the keys are. `enqueue/keys.py` and `inbox/` use
it.
"""

from __future__ import annotations

import hashlib

from celery_outbox_steps.envelope import ascii_text

LENGTH = 255
DIGITS = 32
SEPARATOR = "#"


def stored_key(key: str, scope: str = "") -> str:
    """The key as its column holds it. The same key in another scope is another key."""
    digest = hashlib.sha256(f"{scope}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"{ascii_text(key)[: LENGTH - DIGITS - 1]}{SEPARATOR}{digest[:DIGITS]}"


def readable_key(stored: str) -> str:
    """The beginning of a stored key, for people."""
    return stored.rpartition(SEPARATOR)[0]
