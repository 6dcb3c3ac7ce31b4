"""The fork barrier, with real forks and real threads; and the shield, on a socket pair."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from celery_outbox_steps.publishers import pool
from celery_outbox_steps.worker.forks import ForkBarrier, barrier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def fork_and_exit(code: int = 0) -> int:
    """Fork a child that ends at once; returns its exit code."""
    pid = os.fork()
    if pid == 0:
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextmanager
def unit_at_work(then: Callable[[], object] = bool) -> Iterator[threading.Event]:
    """A thread inside the barrier until the event is set or the block ends; `then` it ends."""
    entered, may_leave = threading.Event(), threading.Event()

    def unit() -> None:
        with barrier:
            entered.set()
            may_leave.wait(10)
            then()

    worker = threading.Thread(target=unit)
    worker.start()
    entered.wait(5)
    yield may_leave
    may_leave.set()
    worker.join(5)


def test_a_fork_waits_for_the_end_of_a_unit() -> None:
    order: list[str] = []
    with unit_at_work(lambda: order.append("unit")) as may_leave:
        threading.Timer(0.2, may_leave.set).start()
        fork_and_exit()
        order.append("fork")
    assert order == ["unit", "fork"]


def test_a_fork_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barrier, "timeout", 0.2)
    with unit_at_work():
        start = time.monotonic()
        fork_and_exit()
        assert 0.15 < time.monotonic() - start < 2


def test_no_fork_waits_for_a_unit_that_will_probably_hang() -> None:
    entered, may_leave = threading.Event(), threading.Event()

    def unit() -> None:
        with barrier.without_delay():
            entered.set()
            may_leave.wait(10)

    worker = threading.Thread(target=unit)
    worker.start()
    entered.wait(5)
    start = time.monotonic()
    fork_and_exit()
    assert time.monotonic() - start < 0.5
    may_leave.set()
    worker.join(5)
    with unit_at_work() as end:
        threading.Timer(0.2, end.set).start()
        start = time.monotonic()
        fork_and_exit()
        assert time.monotonic() - start > 0.15, "the next unit is waited for again"


def test_a_unit_that_hangs_delays_one_fork_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(barrier, "timeout", 0.5)
    with unit_at_work():
        fork_and_exit()
        start = time.monotonic()
        for _ in range(5):
            fork_and_exit()
        took = time.monotonic() - start
    assert took < 0.5, "a fork waited for the hanging unit once more"


def test_a_unit_after_one_that_hung_is_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barrier, "timeout", 0.2)
    hanging, working, go_on = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def units() -> None:
        with barrier:
            hanging.set()
            go_on.wait(10)
        with barrier:
            working.set()
            time.sleep(0.1)
            order.append("unit")

    worker = threading.Thread(target=units)
    worker.start()
    hanging.wait(5)
    fork_and_exit()
    go_on.set()
    working.wait(5)
    fork_and_exit()
    order.append("fork")
    worker.join(5)
    assert order == ["unit", "fork"]


def test_a_relay_that_works_back_to_back_lets_forks_through() -> None:
    stop = threading.Event()
    units = 0

    def relay() -> None:
        nonlocal units
        while not stop.is_set():
            with barrier:
                time.sleep(0.005)
                units += 1

    worker = threading.Thread(target=relay)
    worker.start()
    slowest = 0.0
    for _ in range(30):
        start = time.monotonic()
        fork_and_exit()
        slowest = max(slowest, time.monotonic() - start)
    stop.set()
    worker.join(5)
    assert slowest < barrier.timeout, "a fork ran into its time limit"
    assert units > 10


def test_a_fork_waits_for_all_relays_of_a_worker() -> None:
    """One per database: that one is done says nothing of the others."""
    order: list[str] = []

    def quick() -> None:
        with barrier:
            pass

    with unit_at_work(lambda: order.append("unit")) as may_leave:
        other = threading.Thread(target=quick)
        other.start()
        other.join(5)
        threading.Timer(0.2, may_leave.set).start()
        fork_and_exit()
        order.append("fork")
    assert order == ["unit", "fork"]


def test_the_relay_itself_may_fork() -> None:
    start = time.monotonic()
    with barrier:
        assert fork_and_exit(3) == 3
    assert time.monotonic() - start < barrier.timeout


def test_two_threads_fork_at_once() -> None:
    forkers = [threading.Thread(target=fork_and_exit) for _ in range(2)]
    for forker in forkers:
        forker.start()
    for forker in forkers:
        forker.join(5)
    with barrier:
        pass


def test_the_barrier_is_fresh_in_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barrier, "timeout", 0.1)
    with unit_at_work():
        pid = os.fork()
        if pid == 0:
            start = time.monotonic()
            with barrier:
                os._exit(0 if time.monotonic() - start < 0.05 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_there_is_one_barrier_per_process() -> None:
    assert isinstance(barrier, ForkBarrier)


def test_a_child_drops_a_shielded_socket_without_shutting_it_down() -> None:
    ours, theirs = socket.socketpair()
    transport = SimpleNamespace(sock=ours)
    connection = _Connection(transport)
    pool.shield(connection)
    pid = os.fork()
    if pid == 0:
        dropped = transport.sock is None and ours.fileno() == -1
        os._exit(0 if dropped else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    ours.sendall(b"still here")
    assert theirs.recv(10) == b"still here"
    ours.close()
    theirs.close()


def test_a_connection_that_is_not_connected_is_no_problem() -> None:
    connection = _Connection(None)
    pool.shield(connection)
    assert fork_and_exit(5) == 5
    del connection


class _Connection:
    def __init__(self, transport: object) -> None:
        self._connection = SimpleNamespace(_transport=transport)
