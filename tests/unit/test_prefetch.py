"""The helper thread of a relay: one for all batches, idle in between, and never in the way."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu.utils.json import dumps

from celery_outbox_steps.relay.policy import boot_clock
from celery_outbox_steps.relay.prefetch import PrefetchThread
from celery_outbox_steps.relay.tick import Relay
from celery_outbox_steps.settings import RelayConfig
from celery_outbox_steps.testing import MemoryStore, RecordingPublisher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPTIONS = dumps(
    {"headers": {}, "properties": {}, "priority": 0, "exchange": "", "routing_key": "q"}
)
NAME = "outbox-relay-prefetch"


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


@pytest.fixture
def prefetch() -> Iterator[PrefetchThread]:
    assert not helpers()
    thread = PrefetchThread()
    yield thread
    thread.close()
    assert not helpers()


class Claimed(MemoryStore):
    """Remembers the threads that claimed."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []

    def claim(self, *args: Any, **kwargs: Any) -> Any:
        self.threads.append(threading.current_thread())
        return super().claim(*args, **kwargs)


def relay_of(
    store: MemoryStore,
    prefetch: PrefetchThread,
    *,
    rows: int,
    publisher: RecordingPublisher | None = None,
    clock: Callable[[], float] = boot_clock,
) -> Relay:
    for _ in range(rows):
        store.add(options=OPTIONS)
    app, config = Celery("unit", set_as_current=False), RelayConfig(batch_size=2)
    publisher = publisher or RecordingPublisher()
    return Relay(app, store, publisher, config, "relay", prefetch=prefetch, clock=clock)


def test_one_thread_claims_ahead_for_all_batches(prefetch: PrefetchThread) -> None:
    store = Claimed()
    relay = relay_of(store, prefetch, rows=7)
    assert [relay.run_once().published for _ in range(4)] == [2, 2, 2, 1]
    first, *others = store.threads
    assert first is threading.current_thread()
    assert others == helpers() * 3


def test_there_is_no_thread_before_it_is_needed(prefetch: PrefetchThread) -> None:
    relay = relay_of(MemoryStore(), prefetch, rows=1)
    assert relay.run_once().published == 1
    assert not helpers()


def test_it_is_idle_after_a_tick(prefetch: PrefetchThread) -> None:
    """Then the worker may fork. Here the claim ends after the publishing."""
    claiming, published = threading.Event(), threading.Event()

    class Slow(MemoryStore):
        def claim(self, *args: Any, **kwargs: Any) -> Any:
            if threading.current_thread().name == NAME:
                claiming.set()
                published.wait(5)
            try:
                return super().claim(*args, **kwargs)
            finally:
                claiming.clear()

    class Publisher(RecordingPublisher):
        def publish(self, messages: Any, timeout: float) -> Any:
            assert claiming.wait(5)
            yield from super().publish(messages, timeout)
            published.set()

    relay = relay_of(Slow(), prefetch, rows=4, publisher=Publisher())
    assert relay.run_once().published == 2
    assert not claiming.is_set()
    assert relay.in_hand


def test_a_lease_is_not_renewed_while_it_claims(prefetch: PrefetchThread) -> None:
    """The Store is used by one thread at a time. Here a row is sent alone during a slow claim."""
    now, claiming, renewing = [0.0], threading.Event(), threading.Event()
    overlapped: list[bool] = []

    class Slow(MemoryStore):
        def claim(self, *args: Any, **kwargs: Any) -> Any:
            if threading.current_thread().name == NAME:
                now[0] += 10
                claiming.set()
                overlapped.append(renewing.wait(0.05))
            return super().claim(*args, **kwargs)

        def renew(self, *args: Any) -> Any:
            renewing.set()
            return super().renew(*args)

    class Publisher(RecordingPublisher):
        def publish(self, messages: Any, timeout: float) -> Any:
            assert claiming.wait(5)
            yield from super().publish(messages, timeout)

    store = Slow()
    for _ in range(2):
        store.add(options=OPTIONS, retries=1, updated_at=1.0)
    relay = relay_of(store, prefetch, rows=2, publisher=Publisher(), clock=lambda: now[0])
    assert relay.run_once().published == 2
    assert renewing.is_set()
    assert overlapped == [False]


def test_a_process_that_can_not_have_more_threads_goes_on_without(
    prefetch: PrefetchThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    relay = relay_of(MemoryStore(), prefetch, rows=6)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert relay.run_once().published == 2
        assert not relay.in_hand
    assert relay.run_once().published == 2
    assert relay.in_hand, "it does not try again to start the thread"


@pytest.mark.parametrize("error", [MemoryError(), SystemExit(1)], ids=repr)
def test_it_outlives_what_a_function_raises(prefetch: PrefetchThread, error: BaseException) -> None:
    def fail() -> None:
        raise error

    done: list[int] = []
    assert prefetch.start(fail)
    prefetch.wait()
    assert prefetch.start(lambda: done.append(1))
    prefetch.wait()
    assert done == [1]


def test_close_ends_it_and_the_next_use_starts_it_again(prefetch: PrefetchThread) -> None:
    done: list[int] = []
    prefetch.close()
    for number in range(2):
        assert prefetch.start(lambda number=number: done.append(number))  # type: ignore[misc]
        prefetch.close()
        assert not helpers()
    assert done == [0, 1]


def test_the_relay_closes_it() -> None:
    relay = relay_of(MemoryStore(), PrefetchThread(), rows=4)
    relay.run_once()
    assert helpers()
    relay.settle_in_hand()
    relay.close()
    assert not helpers()


def test_it_does_not_keep_a_process_alive(prefetch: PrefetchThread) -> None:
    prefetch.start(lambda: None)
    assert [thread.daemon for thread in helpers()] == [True]
