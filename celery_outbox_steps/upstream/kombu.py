"""kombu: the socket of a connection, and how its Redis transport pushes a message to a list.

`publishers/pool.py` closes inherited sockets in a forked child. `publishers/redis.py` imitates
kombu's push where `pushes_to_lists` says that it may. Nothing here sends anything.
"""

from __future__ import annotations

import os
from typing import Any


def close_inherited_socket(connection: Any) -> None:
    """Close a connection's descriptor in a forked child, and do nothing else.

    Closing a descriptor tells the broker nothing; kombu's own clean-up would use `shutdown()` or a
    TLS close-notify, and so end the parent's connection. Only the private attributes give access
    to the socket without connecting.
    """
    transport: Any = getattr(connection._connection, "_transport", None)
    sock = getattr(transport, "sock", None)
    if sock is not None:
        transport.sock = None
        os.close(sock.detach())


def pushes_to_lists(channel: Any) -> bool:
    """Whether this channel publishes with kombu's own methods, which our LPUSH imitates.

    If a subclass overrides one of them, messages go through kombu instead.
    """
    from kombu.transport import redis, virtual

    kind = type(channel)
    return (
        getattr(kind, "_put", None) is redis.Channel._put
        and kind.basic_publish is virtual.Channel.basic_publish
        and kind._inplace_augment_message is virtual.Channel._inplace_augment_message
    )


def expiring_queues(channel: Any) -> dict[str, int]:
    """Queues with `x-expires` (kombu 5.7), as kombu tracks them: each push renews their keys."""
    expires: dict[str, int] = channel._expires
    return expires


def list_name(channel: Any, routing_key: str, message: dict[str, Any]) -> str:
    """The Redis list that a prepared message goes to: one per queue and priority step."""
    priority = channel._get_message_priority(message, reverse=False)
    name: str = channel._q_for_pri(routing_key, priority)
    return name
