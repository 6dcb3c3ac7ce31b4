"""A wheel of this checkout, where `pip install celery-outbox-steps` finds it, and a RabbitMQ."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT
from tests.docs.processes import clean_environment, run
from tests.harness.servers import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def wheel_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables with which pip prefers that wheel to anything in an index."""
    dist = tmp_path_factory.mktemp("dist")
    env = clean_environment()
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(dist),
         str(ROOT)], dist, env)  # fmt: skip
    links = f"{dist} {env.get('PIP_FIND_LINKS', '')}".strip()
    return {**env, "PIP_FIND_LINKS": links, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    """A private one, on which examples may use the names that they have."""
    server = PrivateServer("rabbitmq", tmp_path_factory.mktemp("rabbitmq"))
    yield server
    server.teardown()
