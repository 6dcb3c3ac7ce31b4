"""The broker of a destination: its own pool of connections, apart from the app's.

A publisher asks for an object with a `producer_pool`, which an app is and this is too. Two
connections are enough: one thread publishes, and one probe may run beside it. Nothing connects
before the first message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu import Connection
from kombu.pools import ProducerPool

from celery_outbox_steps.errors import ConfigurationError

if TYPE_CHECKING:
    from celery_outbox_steps.destinations import Destination

CONNECTIONS = 2
HEADER_PREFIXES = {"amqp": "cloudEvents_", "kafka": "ce_"}
"""How the protocols' bindings of CloudEvents name attributes, by kombu's type of driver."""
OTHER_PREFIX = "ce-"
"""The prefix of HTTP, where there is no binding."""


class Broker:
    """What publishers take for a destination in place of the app."""

    def __init__(self, destination: Destination) -> None:
        self._connection = connection_for(destination)
        self.header_prefix = header_prefix(destination, self._connection)
        self.producer_pool = self._new_pool()

    def close(self) -> None:
        """Close the connections. It may be used again."""
        # A pool that was emptied waits for a connection until the timeout: take a new one.
        pool, self.producer_pool = self.producer_pool, self._new_pool()
        pool.connections.force_close_all()

    def _new_pool(self) -> Any:
        return ProducerPool(self._connection.Pool(limit=CONNECTIONS), limit=CONNECTIONS)


def connection_for(destination: Destination) -> Any:
    """A connection that is not connected. Raises a `ConfigurationError` if there can be none."""
    try:
        connection = Connection(
            destination.url,
            ssl=destination.ssl,
            transport_options=dict(destination.transport_options),
        )
        connection.transport  # noqa: B018  this imports the transport and its library
    except (ImportError, LookupError, NameError) as exc:
        raise ConfigurationError(
            f"{destination.described} can't be used: {type(exc).__name__}: {exc}. Check the"
            " URL's scheme, and install the library that kombu needs for it."
        ) from exc
    except Exception as exc:  # noqa: BLE001  its text may show a part of a password
        raise ConfigurationError(
            f"{destination.described} can't be used: kombu can't read its URL"
            f" ({type(exc).__name__}). Characters such as / : @ # in a user name or password must"
            " be percent-encoded."
        ) from None
    return connection


def header_prefix(destination: Destination, connection: Any) -> str:
    """What is in front of the names of CloudEvents' attributes."""
    return destination.header_prefix or HEADER_PREFIXES.get(
        connection.transport.driver_type, OTHER_PREFIX
    )
