"""Children are forked while the relay publishes: it keeps the one connection that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import helpers
from tests.harness.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.acceptance.stage import Stage


@pytest.mark.postgresql
@pytest.mark.rabbitmq
@pytest.mark.redis
def test_a_fork_costs_the_relay_no_connection(stage_with: Callable[..., Stage]) -> None:
    service, stage = helpers.require_service("rabbitmq"), stage_with()
    with Proxy(service.host, service.port) as proxy:
        worker = stage.worker("--max-tasks-per-child=1", settings=stage.behind(proxy.port))
        parcels = stage.send_parcels(10)
        stage.wait_until_empty()
        before = proxy.connections
        children = set(worker.children())
        for number in range(1, 21):
            stage.wait_until_ran(stage.enqueue(1))
            parcels += stage.send_parcels(20)
            children |= set(worker.children())
            helpers.wait_for(lambda: stage.rows() == 0, 20, stage.logs)
            assert proxy.connections == before, f"a new connection after {number} forks"
        assert len(children) > 10
        assert worker.complaints() == []  # before the proxy goes, and the consumer with it
    assert sorted(stage.arrived()) == sorted(parcels)
