"""A relay whose own clock is wrong: what counts is the database's, so nothing expires too early."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kombu import Connection

from tests.chaos.workers import skewed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.acceptance.stage import Stage


@pytest.mark.postgresql
@pytest.mark.rabbitmq
@pytest.mark.redis
@pytest.mark.parametrize("skew", ["+3600", "-3600"])
def test_a_wrong_clock_shortens_and_lengthens_no_ttl(
    skew: str, stage_with: Callable[..., Stage]
) -> None:
    stage = stage_with()
    stage.worker(**skewed(skew))
    stage.send_parcels(5, expires=600)
    stage.wait_until_empty()
    assert all(590_000 <= ttl <= 600_000 for ttl in _ttls(stage, 5))


def _ttls(stage: Stage, count: int) -> list[int]:
    """What the broker was told; a message that has expired is not there any more."""
    with Connection(stage.broker) as connection:
        messages = [connection.default_channel.basic_get(stage.parcels) for _ in range(count)]
    assert None not in messages, "expired"
    return [int(message.properties["expiration"]) for message in messages]
