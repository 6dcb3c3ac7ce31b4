"""The interface between the outbox and the tools that observe it: tracing, metrics, signals.

A `Recorder` implements the hooks that it needs; `Recorders` calls them, and is all that enqueue and
relay use. It catches their errors: a recorder never affects a message. A hook that no recorder
implements, or whose library is not loaded, is not called. Vendors are in
`celery_outbox_steps.observe.recorders`.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import Context, ContextVar, copy_context
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from celery_outbox_steps.messages import CALLER_CONTEXT, NO_CONTEXT, CallerContext
from celery_outbox_steps.observe.log import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from celery_outbox_steps.messages import BatchResult, ClaimedMessage, Message, Outcome
    from celery_outbox_steps.store import LaneStore, Sample

P = ParamSpec("P")
T = TypeVar("T")
Around = AbstractContextManager[Any] | None
"""A context manager around a piece of work; None if there is nothing to do."""

_NOTHING = nullcontext()
_traced_context: ContextVar[Context | None] = ContextVar("celery_outbox_traced", default=None)
"""While untraced work runs: the context from before it."""
_registered: list[Recorder] = []


class Publishing(Protocol):
    """A batch while it is published."""

    rows: list[ClaimedMessage]
    outage: str
    """Class and message of the error, if the broker was unavailable; empty until then."""
    watchers: list[Callable[[Message], None]]
    """Called with each message that is about to be sent."""


class Recorder:
    """The hooks. Each does nothing until a subclass overrides it."""

    library: str = "builtins"
    """The module that this recorder works with. While it is not loaded, no hook is called."""

    def on_call(self) -> Mapping[str, str | None]:
        """A task is called: what to keep of the caller's context, as fields of `CallerContext`."""
        return {}

    def on_event(self) -> Mapping[str, str]:
        """An event is published: the headers that continue the caller's trace."""
        return {}

    def around_storing(self, rows: Sequence[Any]) -> Around:
        """Rows are stored, in the caller."""

    def on_enqueued(
        self, database: str, counts: Mapping[str, int], destination: str | None = None
    ) -> None:
        """Rows are committed, in the caller: how many of each task's or event's name."""

    def on_failed_task(self, database: str, task_name: str) -> None:
        """A task failed for good, in its worker, and is kept as a dead letter."""

    def around_tick(self) -> Around:
        """The relay uses the database and the broker: suppress the spans of its own work.

        The project's code that is called meanwhile runs outside this context: see `traced`.
        """

    def around_publishing(self, batch: Publishing) -> Around:
        """A batch is published. The hook may append to `batch.watchers`."""

    def on_opened(self, row: ClaimedMessage, message: Message) -> None:
        """A row that has a context became a message. The hook may add headers to the message."""

    def on_settled(self, store: LaneStore, outcomes: Sequence[Outcome]) -> None:
        """The Store has committed these outcomes."""

    def on_batch(self, database: str, result: BatchResult) -> None:
        """A batch is done."""

    def on_sample(self, database: str, sample: Sample) -> None:
        """The table was sampled, which happens only if a recorder implements this hook."""

    def around_log_line(self, row: ClaimedMessage) -> Around:
        """A log line about one message is written."""

    def on_error(self, error: BaseException, logger_name: str, tags: Mapping[str, str]) -> None:
        """The relay's loop failed. A log line of the same error follows on `logger_name`."""


HOOKS = tuple(name for name in vars(Recorder) if name.startswith(("on_", "around_")))


def register(recorder: Recorder) -> None:
    """Add a recorder to every relay that is created later. A second call changes nothing."""
    if recorder not in _registered:
        _registered.append(recorder)


def registered() -> tuple[Recorder, ...]:
    """The recorders that were registered so far."""
    return tuple(_registered)


class Recorders:
    """Several recorders as one. Their exceptions are caught here."""

    def __init__(self, recorders: Iterable[Recorder] = ()) -> None:
        recorders = tuple(recorders)
        self._hooks: dict[str, list[tuple[str, Callable[..., Any]]]] = {
            name: [
                (each.library, getattr(each, name))
                for each in recorders
                if getattr(type(each), name) is not getattr(Recorder, name)
            ]
            for name in HOOKS
        }

    @property
    def want_samples(self) -> bool:
        """Whether a recorder uses samples: otherwise none is taken, to save the statement."""
        return bool(self._hooks["on_sample"])

    def caller_context(self) -> CallerContext:
        """The part of the caller's context to store; empty if a recorder fails."""
        found: dict[str, str | None] = {}
        try:
            for library, on_call in self._hooks["on_call"]:
                if library in sys.modules:
                    found |= on_call()
            return _checked(CallerContext(**found)) if found else NO_CONTEXT
        except Exception as exc:  # noqa: BLE001  structlog's values can be of any type
            log("celery_outbox_context_failed", type(exc).__name__)
            return NO_CONTEXT

    def trace_headers(self) -> dict[str, str]:
        """The headers of an event that continue the caller's trace."""
        found: dict[str, str] = {}
        for library, on_event in self._hooks["on_event"]:
            if library in sys.modules:
                with suppress(Exception):
                    found.update(on_event())
        return found

    def storing(self, rows: Sequence[Any]) -> AbstractContextManager[Any]:
        return self._around("around_storing", rows)

    def publishing(self, batch: Publishing) -> AbstractContextManager[Any]:
        return self._around("around_publishing", batch)

    def about(self, row: ClaimedMessage) -> AbstractContextManager[Any]:
        return self._around("around_log_line", row)

    def restore(self, row: ClaimedMessage, message: Message) -> None:
        """Restore the caller's context in the message. Most rows have none: no hook is called."""
        if row[CALLER_CONTEXT] != NO_CONTEXT:  # type: ignore[comparison-overlap]  # it is a slice
            self._call_hooks("on_opened", row, message)

    def run_untraced(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work without traces of it: tracing libraries do not record it, or drop it."""
        suppressed = self._around("around_tick")
        if suppressed is _NOTHING:
            return work(*args, **kwargs)
        token = _traced_context.set(copy_context())
        try:
            with suppressed:
                return work(*args, **kwargs)
        finally:
            _traced_context.reset(token)

    def report_enqueued(
        self, database: str, counts: Mapping[str, int], destination: str | None = None
    ) -> None:
        """`destination` is an argument of the hook only if there is one."""
        more = () if destination is None else (destination,)
        self._call_hooks("on_enqueued", database, counts, *more)

    def report_failed_task(self, database: str, task_name: str) -> None:
        self._call_hooks("on_failed_task", database, task_name)

    def report_settled(self, store: LaneStore, outcomes: Sequence[Outcome]) -> None:
        self._call_hooks("on_settled", store, outcomes)

    def report_batch(self, database: str, result: BatchResult) -> None:
        self._call_hooks("on_batch", database, result)

    def report_sample(self, database: str, sample: Sample) -> None:
        self._call_hooks("on_sample", database, sample)

    def report_error(self, error: BaseException, logger_name: str, tags: Mapping[str, str]) -> None:
        self._call_hooks("on_error", error, logger_name, tags)

    def _call_hooks(self, hook: str, *args: Any) -> None:
        for library, call in self._hooks[hook]:
            if library in sys.modules:
                with suppress(Exception):
                    call(*args)

    def _around(self, hook: str, *args: Any) -> AbstractContextManager[Any]:
        found = []
        for library, make in self._hooks[hook]:
            try:
                made = make(*args) if library in sys.modules else None
            except Exception:  # noqa: BLE001, S112  `suppress` would be three calls per task call
                continue
            if made is not None:
                found.append(made)
        return _guarded(found) if found else _NOTHING


NO_RECORDERS = Recorders()


class Recorded(Protocol):
    """An object with an attribute `recorders`."""

    recorders: Recorders


R = TypeVar("R", bound=Recorded)


def untraced(method: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
    """Run the method with `run_untraced` of its object's recorders."""

    @wraps(method)
    def wrapper(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.recorders.run_untraced(method, self, *args, **kwargs)

    return wrapper


def traced(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run the project's code, such as signal receivers, with its traces, even in untraced work."""
    context = _traced_context.get()
    return work(*args, **kwargs) if context is None else context.run(work, *args, **kwargs)


def shared(values: Iterable[str | None]) -> str | None:
    """The value that all have in common; None if they differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _checked(context: CallerContext) -> CallerContext:
    for value in context:
        if not isinstance(value, str | None):
            raise TypeError(f"a column of text can't hold {type(value).__name__}")
    return context


@contextmanager
def _guarded(managers: list[AbstractContextManager[Any]]) -> Iterator[None]:
    """Enter the managers and ignore their errors: tracing must not stop a call or lose a batch."""
    stack = ExitStack()
    with suppress(Exception):
        for manager in managers:
            stack.enter_context(manager)
    try:
        yield
    except BaseException:
        with suppress(Exception):
            stack.__exit__(*sys.exc_info())
        raise
    with suppress(Exception):
        stack.close()
