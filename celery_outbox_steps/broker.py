"""A short connection to the broker, for telling workers what is not a message of a row."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def brief_connection(app: Any) -> Iterator[Any]:
    """For what is worth a moment, but not the time that a broker that is away costs."""
    once = {"max_retries": 0}
    with app.connection_for_write(connect_timeout=1, transport_options=once) as connection:
        yield connection
