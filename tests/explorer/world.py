"""One play: relays at work on a model of the database and the broker, with faults by choice.

The clock stands still while an actor can do something, and jumps beyond the lease when none can.
A database that is away comes back after such a jump, when every relay has noticed. It is a
`MemoryStore`; as on PostgreSQL, a claim is not on disk until a later write is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu.utils.json import dumps

from celery_outbox_steps.errors import Interrupted, StoreError
from celery_outbox_steps.messages import Message, Receipt
from celery_outbox_steps.relay.tick import Relay
from celery_outbox_steps.settings import RelayConfig
from celery_outbox_steps.testing import MemoryStore
from tests.explorer.actors import Actor, ActorThread, Process, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.explorer.search import Choices

BATCH = 2
LEASE = 300.0
MOST_JUMPS = 40
BAD_MESSAGE = {"poison": "1", "killer": "1"}
"""Faults that are a message: it breaks each connection that it is on, or kills each relay."""
PROCESS_FAULTS = {"kill": "killed", "stop": "stopping", "pause": "paused"}
"""Faults that hit one process before any of its steps. The others come with the call they hit."""
APP = Celery("explorer", set_as_current=False)


@dataclass(frozen=True, slots=True)
class Case:
    """What to explore: who is there, which fault comes, and how often."""

    fault: str
    relays: int = 1
    rows: int = 2 * BATCH
    faults: int = 1
    switches: int = 2
    """How often another actor goes on than the one that would by itself."""
    claim_ahead: bool = True
    lazy: bool = False
    keys: str = ""
    """The order keys of the rows, a letter each, again and again; empty: they have none."""

    def key_of(self, number: int) -> str | None:
        return self.keys[number % len(self.keys)] if self.keys else None

    @property
    def bad_message(self) -> str | None:
        return BAD_MESSAGE.get(self.fault)


@dataclass(slots=True)
class Outcome:
    """What became of one play."""

    lost: int = 0
    copies: int = 0
    """Messages that the broker got once more than needed."""
    waiting: int = 0
    """Rows that had to wait until a lease ended."""
    stolen: int = 0
    """Rows that were settled under the claim of another relay."""
    dead: int = 0
    """Good messages that ended as dead letters."""
    overtaken: int = 0
    """Messages that the broker got before an earlier one of their key."""
    log: list[str] = field(default_factory=list)


class World:
    """Everything around the relays of one play."""

    def __init__(self, case: Case, choices: Choices) -> None:
        self.case = case
        self.now = 1_000_000.0
        self.outcome = Outcome()
        self.broker: Counter[str] = Counter()
        self.rows = MemoryStore(clock=self.clock)
        self.database_away = self._jumped_while_away = False
        self.stage = Stage()
        self._choices = choices
        self._faults, self._switches = case.faults, case.switches
        self._unsynced: dict[int, tuple[str | None, float | None]] = {}
        self._sessions: list[Session] = []
        self._started = 0

    def play(self) -> Outcome:
        for number in range(self.case.rows):
            key = self.case.key_of(number)
            self.rows.add(options=_options(str(number)), task_id=str(number), order_key=key)
        for _ in range(self.case.relays):
            self._start_relay()
        self._run()
        self.stage.end()
        dead = [letter.row.task_id for letter in self.rows.dead_letters.values()]
        alive = [str(number) for number in range(self.case.rows) if str(number) not in dead]
        copies = [self.broker[message_id] for message_id in alive]
        self.outcome.lost = copies.count(0) + len(self.rows.rows)
        self.outcome.dead = sum(message_id != self.case.bad_message for message_id in dead)
        self.outcome.copies = sum(max(0, count - 1) for count in copies)
        return self.outcome

    def clock(self) -> float:
        return self.now

    def receive(self, message_id: str) -> None:
        """The broker has the message."""
        number, key = int(message_id), self.case.key_of(int(message_id))
        self.outcome.overtaken += any(
            self.case.key_of(each) == key and not self.broker[str(each)]
            for each in range(number if key else 0)
        )
        self.broker[message_id] += 1

    # -- called by the models of database and broker ----------------------------------------------

    def step(self, process: Process, what: str) -> None:
        """Others may go first, and faults may come, before this is done."""
        self.stage.step()
        self.outcome.log.append(f"{process.name}: {what}")

    def step_alone(self, process: Process, what: str) -> None:
        """Faults may come, but the order with others' steps makes no difference."""
        if self.case.fault in PROCESS_FAULTS and self._strike(process):
            self.stage.step()
        self.outcome.log.append(f"{process.name}: {what}")

    def strikes(self, fault: str) -> bool:
        """Whether the fault comes here."""
        possible = self.case.fault == fault and self._faults and self.rows.rows
        if not possible or not self._choices.choose(2):
            return False
        self._faults -= 1
        self.outcome.log.append(f"-- {fault}")
        return True

    def kill(self, process: Process) -> None:
        """Called by an actor of this process: it ends here, and another one takes its place."""
        self.outcome.log.append(f"-- {process.name} is killed")
        process.killed = True
        self._start_relay()
        self.stage.step()

    def crash_database(self) -> None:
        """What was not on disk is forgotten, and every session is broken."""
        for row_id, lease in self._unsynced.items():
            row = self.rows.rows.get(row_id)
            if row is not None:
                row.claimed_by, row.claimed_until = lease
        self._unsynced.clear()
        for session in self._sessions:
            session.broken = True

    def not_on_disk(self, leases: dict[int, tuple[str | None, float | None]]) -> None:
        for row_id, lease in leases.items():
            self._unsynced.setdefault(row_id, lease)

    def on_disk(self) -> None:
        """A durable write takes every earlier one to the disk with it."""
        self._unsynced.clear()

    # -- the play ---------------------------------------------------------------------------------

    def _run(self) -> None:
        actor: Actor | None = None
        for _ in range(MOST_JUMPS):
            while (actor := self._next(actor)) is not None:
                if not self._strike(actor.process):
                    self.stage.run(actor)
            if not self._pass_time():
                return

    def _next(self, last: Actor | None) -> Actor | None:
        """Who goes on: the same as before, if it can; one that was paused after the others. To
        choose another one costs a switch."""
        ready = [actor for actor in self.stage.actors if actor.can_run]
        ready.sort(key=lambda actor: (actor is not last, actor.process.was_paused))
        if not ready or not self._switches or not self.rows.rows:
            return ready[0] if ready else None  # with no rows left the order is of no interest
        choice = self._choices.choose(len(ready))
        self._switches -= choice > 0
        return ready[choice]

    def _strike(self, process: Process) -> bool:
        """A fault before the next step of this process; True if it has none then."""
        fault = self.case.fault
        if fault not in PROCESS_FAULTS or process.stopping or not self.strikes(fault):
            return False
        setattr(process, PROCESS_FAULTS[fault], True)
        if fault != "pause":
            self._start_relay()  # in its place
        return fault != "stop"

    def _pass_time(self) -> bool:
        """No actor can do anything: let leases end, and those that were paused go on."""
        actors = self.stage.actors
        if self.database_away and self._jumped_while_away:
            self.database_away = False
            return self._go_on("-- the database is back")
        self._jumped_while_away = self.database_away
        leased = [row for row in self.rows.rows.values() if (row.claimed_until or 0) >= self.now]
        if not self.database_away:
            self.outcome.waiting = max(self.outcome.waiting, len(leased))
        if not self.rows.rows and not any(actor.process.paused for actor in actors):
            return False
        self.now += LEASE + 1
        return self._go_on("-- the lease ends")

    def _go_on(self, why: str) -> bool:
        self.outcome.log.append(why)
        for actor in self.stage.actors:
            process, actor.parked = actor.process, False
            process.was_paused, process.paused = process.was_paused or process.paused, False
        return True

    def _start_relay(self) -> None:
        self._started += 1
        process = Process(f"relay {self._started}")
        session = Session(self, process)
        self._sessions.append(session)
        config = RelayConfig(batch_size=BATCH, stale_timeout=LEASE, max_retries=3)
        helper = ActorThread(self.stage, process) if self.case.claim_ahead else None
        relay = Relay(
            APP,
            session,  # type: ignore[arg-type]
            Publisher(self, process),
            config,
            process.name,
            should_stop_sending=lambda: process.stopping,
            prefetch=helper,  # type: ignore[arg-type]
            clock=self.clock,
        )
        self.stage.add(process, lambda: self._serve(relay, process))

    def _serve(self, relay: Relay, process: Process) -> None:
        """What the service does around a relay, as far as rows are concerned."""
        while not process.stopping or relay.in_hand:
            try:
                result = relay.settle_in_hand() if process.stopping else relay.run_once()
            except StoreError:
                if self.database_away:
                    self.stage.park()
                continue
            if not result.claimed and not process.stopping:
                self.stage.park()
        relay.close()


class Session:
    """The part of a Store that a relay uses, on the model of the database."""

    name = "model"

    def __init__(self, world: World, process: Process) -> None:
        self.broken = False
        self._world = world
        self._process = process
        self._rows = world.rows

    def claim(self, *args: Any, **options: Any) -> Any:
        return self._call("claim", lambda: self._claim(*args, **options))

    def begin_attempt(self, *args: Any) -> Any:
        return self._call("begin_attempt", lambda: self._durable(self._rows.begin_attempt(*args)))

    def settle(self, outcomes: Any, relay_id: str) -> Any:
        return self._call("settle", lambda: self._settle(outcomes, relay_id))

    def renew(self, ids: Any, lease: float, relay_id: str) -> Any:
        return self._call("renew", lambda: self._renew(ids, lease, relay_id))

    def release(self, *args: Any) -> Any:
        return self._call("release", lambda: self._durable(self._rows.release(*args)))

    def close(self) -> None:
        """Nothing to close."""

    def _call(self, what: str, effect: Callable[[], Any]) -> Any:
        self._world.step(self._process, what)
        self._away_or_not()
        self._crash_or_not()
        answer = effect()
        if self._world.strikes("lost reply"):
            raise StoreError("the answer was lost")
        self._away_or_not()
        self._crash_or_not()
        return answer

    def _away_or_not(self) -> None:
        if self._world.strikes("database away"):
            self._world.database_away = True
        if self._world.database_away:
            raise StoreError("the database is away")

    def _crash_or_not(self) -> None:
        if self._world.strikes("database crash"):
            self._world.crash_database()
        if self.broken:
            self.broken = False
            raise StoreError("the session was broken")

    def _claim(self, *args: Any, **options: Any) -> Any:
        before = {row.id: (row.claimed_by, row.claimed_until) for row in self._rows.rows.values()}
        claimed = self._rows.claim(*args, **options)
        self._world.not_on_disk({message.id: before[message.id] for message in claimed})
        return claimed

    def _renew(self, ids: Any, lease: float, relay_id: str) -> Any:
        return self._durable(self._rows.renew(ids, lease, relay_id))

    def _settle(self, outcomes: Any, relay_id: str) -> int:
        rows = [self._rows.rows.get(outcome.message.id) for outcome in outcomes]
        others = [row.id for row in rows if row and row.claimed_by not in (None, relay_id)]
        fenced = self._rows.settle(outcomes, relay_id)
        self._world.outcome.stolen += sum(row_id not in self._rows.rows for row_id in others)
        self._durable(len(outcomes) - fenced)
        return fenced

    def _durable(self, answer: Any) -> Any:
        if answer:
            self._world.on_disk()
        return answer


class Publisher:
    """The broker gets a message at each step, and answers when it has all of them, or each."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self.lazy = world.case.lazy

    def publish(self, messages: Iterable[Message], timeout: float) -> Iterator[Receipt]:
        publish = self._one_by_one if self.lazy else self._pipeline
        self._world.step(self._process, "begin to publish")
        yield from publish(messages)

    def reachable(self, timeout: float) -> bool:
        return True

    def close(self) -> None:
        """Nothing to close."""

    def _one_by_one(self, messages: Iterable[Message]) -> Iterator[Receipt]:
        for position, message in enumerate(messages):
            self._send(message)
            yield Receipt(position)

    def _pipeline(self, messages: Iterable[Message]) -> Iterator[Receipt]:
        written = []
        for position, message in enumerate(messages):
            self._send(message)
            written.append(position)
        self._world.step_alone(self._process, "wait for confirms")
        for position in written:
            self._interrupt_or_not()
            yield Receipt(position)

    def _send(self, message: Message) -> None:
        message_id = message.headers["id"]
        self._world.step_alone(self._process, f"publish {message_id}")
        self._interrupt_or_not()
        if message_id == self._world.case.bad_message:
            if self._world.case.fault == "killer":
                self._world.kill(self._process)
            raise Interrupted("the connection broke")
        self._world.receive(message_id)

    def _interrupt_or_not(self) -> None:
        if self._world.strikes("broker away"):
            raise Interrupted("the connection broke")


def _options(message_id: str) -> str:
    return dumps(
        {
            "headers": {"task": "explorer.task", "id": message_id},
            "properties": {},
            "priority": 0,
            "exchange": "",
            "routing_key": "q",
        }
    )
