"""One play: a broker, members that come and go, everything that goes wrong, and then a time in which nothing does."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from zlib import crc32

from aioparallel.offsets import decode_offset_map
from aioparallel.records import Outgoing, TopicPartition
from aioparallel.testing.memory import InMemoryBroker, Transaction

from .behaviours import run_of
from .clocks import one_source_of_chance
from .loop import RecordingLoop
from .members import GROUP, TOPIC, Member, order_by_value
from .plan import NOT_YET, Plan
from .truth import Place, Truth

__all__ = ["Played", "play"]

_NODES = 3
_TO_FINISH = 240.0  # virtual seconds that all of it may take once nothing goes wrong any more
_LATEST = 3.5  # virtual seconds that a request may be late
_TO_CLOSE = 40.0  # virtual seconds for a member to end: drain, grace, commit, resources, producer, leaving
_STOP_LOOKING = 20  # violations after which the play has shown enough


@dataclass(frozen=True)
class Played:
    """What came of a seed."""

    seed: int
    violations: tuple[str, ...]
    story: tuple[str, ...]
    """Empty where it was not asked for."""
    seconds: float
    """Virtual."""
    handled: int
    digest: int
    """Of all that was told: the same for the same play."""


def play(seed: int, *, tell: bool = False, without: Collection[str] = tuple(NOT_YET), eager: bool = False) -> Played:
    """Play the seed, in a loop of its own. Raises nothing for what it finds.

    ``eager``: tasks begin at once, where this Python can do that (3.12).
    """
    plan = Plan(seed, without)
    loop = RecordingLoop()
    if eager:
        loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009
    gc.collect()
    gc.freeze()
    try:
        with _unraisable() as unraisable, _logging(tell) as log, one_source_of_chance(seed, loop.time, plan.pace):
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                stage = Play(plan, loop, log)
                try:
                    runner.run(stage.run())
                except Exception as error:
                    stage.truth.violated(f"the play itself ended with {type(error).__name__}: {error}")
            gc.collect()
            for found in (*loop.uncaught, *unraisable):
                stage.truth.violated(f"nobody caught: {found}")
    finally:
        gc.unfreeze()
    story = (f"seed {seed}:\n{plan.describe()}", *log) if tell else ()
    return Played(
        seed, tuple(stage.truth.violations), story, loop.time(), len(stage.truth.runs), stage.digest & (2**64 - 1)
    )


@contextmanager
def _unraisable() -> Iterator[list[str]]:
    found: list[str] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda it: found.append(f"{it.err_msg}: {it.exc_value!r}")
    try:
        yield found
    finally:
        sys.unraisablehook = before


@contextmanager
def _logging(tell: bool) -> Iterator[list[str]]:
    """The story's lines; with what the package logs among them, if it is to be told."""
    lines: list[str] = []
    logger, asyncio_logger = logging.getLogger("aioparallel"), logging.getLogger("asyncio")
    before = logger.level, logger.propagate, asyncio_logger.level
    handler = _ToStory(lines)
    logger.propagate = False
    logger.setLevel(logging.INFO if tell else logging.CRITICAL + 1)
    asyncio_logger.setLevel(logging.CRITICAL)
    if tell:
        logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
        asyncio_logger.setLevel(before[2])


class _ToStory(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        try:
            now = asyncio.get_running_loop().time()
        except RuntimeError:
            now = 0.0
        self._lines.append(f"{now:10.4f}    log {record.levelname.lower()}: {record.getMessage()}")


class Play:
    """The director draws from one source of chance, handlers from one of their own: see :meth:`rng_of`."""

    def __init__(self, plan: Plan, loop: RecordingLoop, story: list[str]) -> None:
        self.plan = plan
        self.rng = random.Random(plan.seed + 1)
        self.broker = InMemoryBroker(nodes=_NODES, rng=random.Random(plan.seed + 2), metadata_limit=plan.metadata_limit)
        self.truth = Truth(
            self._lane_of,
            lambda what: self.tell(lambda: what),
            loop.time,
            begins_late=plan.options["isolation"] == "task",
        )
        self.is_healed = False
        self.attempts: dict[Place, int] = {}
        self.open_resources = 0
        self.digest = 0
        self._story = story
        self._loop = loop
        self._members: list[Member] = []
        self._all: list[Member] = []
        self._timers: dict[asyncio.TimerHandle, None] = {}
        self._counts: dict[str, int] = {}
        self._committed: dict[TopicPartition, object] = {}
        self._complete: dict[TopicPartition, set[int]] = {}
        self._has_rung = False

    # -- for members and handlers

    def tell(self, what: Callable[[], str]) -> None:
        """Add to the story."""
        line = f"{self._loop.time():10.4f} {what()}"
        self.digest = (self.digest * 31 + _stable_hash(line)) & (2**64 - 1)
        self._story.append(line)

    def later(self, seconds: float, do: Callable[[], object]) -> None:
        """A timer of the play's own."""
        handle = self._loop.call_later(seconds, do)
        self._timers[handle] = None

    def rng_of(self, *numbers: int) -> random.Random:
        """Chance that depends on nothing but these."""
        return random.Random(hash((self.plan.seed, *numbers)))

    def delay_of_a_fetch(self) -> float:
        """Seconds that an answer is on its way."""
        if self.plan.calm or self.is_healed or self.rng.random() > 0.1:
            return 0.0
        return self.rng.uniform(0, 0.5)

    def count(self, what: str) -> int:
        """How often it was counted before."""
        self._counts[what] = self._counts.get(what, 0) + 1
        return self._counts[what]

    def member_ended(self, member: Member) -> None:
        self.tell(lambda: f"{member.name} has ended: {member.ended_with!r}")
        member.check_end()
        self._members.remove(member)
        for hold in self.truth.holds.values():
            hold.is_over = hold.is_over or hold.member == member.name  # its listener hears no more

    def committed_offsets(self, partition: TopicPartition) -> set[int]:
        """Offsets of the log that are complete by what is committed now."""
        self._look_at_commits()
        return self._complete.get(partition, set())

    def _lane_of(self, key: bytes | None, value: bytes | None) -> object:
        match self.plan.options["ordering"].value:
            case "partition":
                return True
            case "unordered":
                return None
            case _:
                return order_by_value(value) if self.plan.order_by else key

    # -- the course of it

    async def run(self) -> None:
        """All of it."""
        self._fill()
        for topic in ("out", "dlq"):
            self.broker.create_topic(topic, 3)
        for request, probability in self.plan.faults.items():
            faults = self.plan.faults_of(request)
            for fault in faults:
                self.broker.faults.sometimes(request, probability / len(faults), fault)
        looking = self._loop.create_task(self._look_around(), name="looking")
        for _ in range(self.plan.members):
            self._enter()
        await self._trouble()
        self._heal()
        await self._finish()
        await self._close()
        looking.cancel()
        await asyncio.wait([looking])
        if not looking.cancelled() and (error := looking.exception()) is not None:
            raise error
        self._look_at_what_is_left()
        self._look_at_outputs()

    async def _trouble(self) -> None:
        until = self._loop.time() + self.plan.troubled_for
        while (left := until - self._loop.time()) > 0 and len(self.truth.violations) < _STOP_LOOKING:
            await asyncio.sleep(min(left, self.rng.uniform(0.02, 0.5)))
            self._act()

    def _act(self) -> None:
        """Something happens."""
        acts: list[tuple[float, Callable[[], None]]] = [
            (3, self._enter),
            (2, self._append),
            (1.5, self._stop_one),
            (0.5, self._pause_one),
        ]
        if not self.plan.calm:
            acts += [
                (1, self._cancel_one),
                (0.7, self._crash_one),
                (1, self._lose_one),
                (1, self._move_a_leader),
                (0.7, self._trouble_a_node),
                (0.3, self._vanish),
                (0.3, self._lose_the_coordinator),
            ]
        [(_, act)] = self.rng.choices(acts, [weight for weight, _ in acts])
        act()

    def _heal(self) -> None:
        self.is_healed = True
        self.tell(lambda: "everything heals")
        self.broker.faults.heal()
        self.broker.is_coordinator_available = True
        if not self.broker.is_reachable:
            self.broker.come_back()
        for node in range(1, _NODES + 1):
            self.broker.start_node(node)
            self.broker.unhang(node)

    async def _finish(self) -> None:
        """Wait until all is handled and committed."""
        # Commits that were late come now, and say less than others that overtook them: that is no loss, but only what
        # ends from now on makes the members say it again.
        self.later(_LATEST, self._ring)
        until = self._loop.time() + _TO_FINISH
        while (left := self._left()) and len(self.truth.violations) < _STOP_LOOKING:
            if self._loop.time() > until:
                seen = "; ".join(member.describe() for member in self._members)
                self.truth.violated(f"stall: {_TO_FINISH:g} s after everything healed, {left}; {seen}")
                return
            if not any(not member.is_leaving for member in self._members):
                self._enter(until_end=False)
            await asyncio.sleep(0.1)

    def _ring(self) -> None:
        """One more record in each partition."""
        self.tell(lambda: "the bell rings")
        for number in range(self.plan.partitions):
            self._append_one(number, self.rng.choice(self.plan.keys))
        self._has_rung = True

    def _left(self) -> str:
        """What is not finished, in words."""
        if not self._has_rung:
            return "the bell"
        if unfinished := self.truth.unfinished():
            return f"not over: { {str(p): offsets[:10] for p, offsets in unfinished.items()} }"
        self._look_at_commits()
        behind = {
            str(p): sorted(offsets - self._complete.get(p, set()))[:10]
            for p, offsets in self.truth.expected.items()
            if offsets - self._complete.get(p, set())
        }
        return f"not committed: {behind}" if behind else ""

    async def _close(self) -> None:
        for member in list(self._members):
            if member.is_leaving:
                continue
            match self.rng.choice(("stop", "stop", "stop", "no drain", "cancel")):
                case "stop":
                    member.stop()
                case "no drain":
                    member.stop(drain=False)
                case "cancel":
                    member.cancel()
        tasks = [member.task for member in self._all if not member.task.done()]
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=_TO_CLOSE)
            for task in left:
                self.truth.violated(f"{task.get_name()} did not end within {_TO_CLOSE:g} s: {task.get_stack(limit=3)}")
        # Handlers that ignore their cancellation were left behind; they end by themselves.
        for _ in range(50):
            if not any(self.truth.running.values()):
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(0)

    # -- what may happen

    def _fill(self) -> None:
        self.broker.create_topic(TOPIC, self.plan.partitions)
        self._append_some(self.plan.records)
        for number in range(self.plan.partitions):
            partition = TopicPartition(TOPIC, number)
            offsets = sorted(self.truth.expected.get(partition, ()))
            gone = [offset for offset in offsets if self.rng.random() < self.plan.gaps]
            self.broker.compact(partition, gone)
            self.truth.removed(partition, gone)

    def _append(self) -> None:
        self._append_some(self.rng.randint(1, 30))

    def _append_some(self, count: int) -> None:
        """Append records, some of them in transactions that end a little later or are aborted."""
        transaction, aborted = None, False
        for _ in range(count):
            if transaction is None and self.rng.random() < self.plan.transactions:
                transaction, aborted = self.broker.begin_transaction(), self.rng.random() < 0.5
            number, key = self.rng.randrange(self.plan.partitions), self.rng.choice(self.plan.keys)
            self._append_one(number, key, transaction, is_seen=not (self.plan.read_committed and aborted))
            if transaction is not None and self.rng.random() < 0.3:
                self.broker.end_transaction(transaction, commit=not aborted)
                transaction, aborted = None, False
        if transaction is not None:
            ended, commit = transaction, not aborted
            self.later(self.rng.uniform(0, 1), lambda: self.broker.end_transaction(ended, commit=commit))

    def _append_one(
        self, number: int, key: bytes | None, transaction: Transaction | None = None, *, is_seen: bool = True
    ) -> None:
        value = b"%d" % self.rng.randint(0, 10**6)
        partition, offset = self.broker.append(TOPIC, value, key=key, partition=number, transaction=transaction)
        if is_seen:
            self.truth.appended(Place(partition, offset), key, value)

    def _enter(self, *, until_end: bool | None = None) -> None:
        if sum(not member.is_leaving for member in self._members) >= max(1, self.plan.members):
            return
        until_end = self.plan.until_end and self.rng.random() < 0.5 if until_end is None else until_end
        member = Member(self, f"m{len(self._all) + 1}", until_end=until_end)
        if not self.is_healed:
            member.may_end_with.add("BrokerUnreachable")
        self.tell(lambda: f"{member.name} comes{' until the end' if until_end else ''}")
        self._members.append(member)
        self._all.append(member)
        member.come()

    def _one(self) -> Member | None:
        able = [member for member in self._members if not member.is_leaving]
        return self.rng.choice(able) if able else None

    def _stop_one(self) -> None:
        if (member := self._one()) is not None:
            drain = self.rng.random() < 0.6
            member.stop(drain=drain)
            if drain and self.rng.random() < 0.3:
                self.later(self.rng.uniform(0, 0.5), lambda: member.stop(drain=False))
            elif not self.plan.calm and self.rng.random() < 0.2:
                self._cancel_again(member)

    def _cancel_one(self) -> None:
        if (member := self._one()) is not None:
            member.cancel()
            if self.rng.random() < 0.3:
                self._cancel_again(member)

    def _cancel_again(self, member: Member) -> None:
        """Cancel it while it is on its way out, perhaps."""
        self.later(self.rng.uniform(0, 0.5), member.cancel)

    def _crash_one(self) -> None:
        member = self._one()
        if member is not None and member.is_open:
            member.crash()

    def _lose_one(self) -> None:
        known = sorted(self.broker.group(GROUP).members)
        if known:
            name = self.rng.choice(known)
            self.tell(lambda: f"the group throws {name} out")
            self.broker.expire_session(GROUP, name, self._loop.time())

    def _pause_one(self) -> None:
        if (member := self._one()) is not None:
            member.pause(self.rng.uniform(0, 0.5))

    def _move_a_leader(self) -> None:
        topic = self.rng.choice(("out", "dlq"))
        partition, node = TopicPartition(topic, self.rng.randrange(3)), self.rng.randint(1, _NODES)
        self.tell(lambda: f"{partition} moves to node {node}")
        self.broker.move_leader(partition, node)

    def _trouble_a_node(self) -> None:
        node, seconds = self.rng.randint(1, _NODES), self.rng.uniform(0.1, 2.0)
        if self.rng.random() < 0.5:
            self.tell(lambda: f"node {node} hangs for {seconds:.2f} s")
            self.broker.hang(node)
            self.later(seconds, lambda: self.broker.unhang(node))
        else:
            self.tell(lambda: f"node {node} stops for {seconds:.2f} s")
            self.broker.stop_node(node)
            self.later(seconds, lambda: self.broker.start_node(node))

    def _vanish(self) -> None:
        seconds = self.rng.uniform(0.05, 1.0)
        self.tell(lambda: f"the broker is gone for {seconds:.2f} s")
        self.broker.go_down()
        self.later(seconds, self.broker.come_back)

    def _lose_the_coordinator(self) -> None:
        seconds = self.rng.uniform(0.05, 1.0)
        self.tell(lambda: f"the coordinator is gone for {seconds:.2f} s")
        self.broker.is_coordinator_available = False
        self.later(seconds, lambda: setattr(self.broker, "is_coordinator_available", True))

    # -- what must hold

    async def _look_around(self) -> None:
        seen, looks = -1, 0
        while True:
            await asyncio.sleep(self.plan.look_every)
            looks += 1
            if self.truth.events == seen and looks % 10:
                continue
            seen = self.truth.events
            for member in self._members:
                if member.is_open:
                    member.look()
            self._look_at_commits()

    def _look_at_commits(self) -> None:
        """Whatever is committed as complete is over (I2)."""
        for partition, committed in self.broker.group(GROUP).offsets.items():
            if self._committed.get(partition) is committed:
                continue
            self._committed[partition] = committed
            expected = self.truth.expected.get(partition, set())
            found = decode_offset_map(committed.offset, committed.metadata)
            above = range(found.base_offset, found.highest_succeeded + 1)
            complete = {o for o in expected if o < committed.offset or o in above} - set(found.incompletes)
            self._complete[partition] = complete
            early = sorted(complete - self.truth.over.get(partition, set()))
            if early:
                self.truth.violated(f"lost: {partition} committed at {committed.offset}, {early[:10]} are not over")

    def _look_at_what_is_left(self) -> None:
        violated = self.truth.violated
        for handle in self._timers:
            handle.cancel()
        running = [run.place for runs in self.truth.running.values() for run in runs if not run.has_returned]
        if running:
            violated(f"handlers still run: {list(map(str, running))}")
        for what, names in (("task", self._loop.tasks()), ("timer", self._loop.timers())):
            for name in names:
                if self.plan.leaves_out("no opener after closing") and ("_open" in name or "timeouts" in name):
                    continue
                if "_name_if_stuck" in name and self.plan.leaves_out("no timer after closing"):
                    continue
                violated(f"a {what} is left: {name}")
        if self.open_resources:
            violated(f"{self.open_resources} resources are not closed")
        group = self.broker.group(GROUP)
        group.advance(self._loop.time())
        nodes = self.broker.nodes
        for node in nodes.numbers:
            if count := nodes.connections(node):
                violated(f"{count} connections to node {node} are left")

    def _look_at_outputs(self) -> None:
        """What is acknowledged stands where it was told to, once; outputs of a lane keep its order."""
        violated = self.truth.violated
        first: dict[tuple[int, int], None] = {}
        stood: dict[int, dict[Place, None]] = {}
        for record in self.broker.records("out"):
            named = run_of(Outgoing("out", record.value))
            assert named is not None
            if named in first:
                violated(f"output {named} stands twice in the log")
            first[named] = None
            run = self.truth.runs[named[0]]
            if record.key is not None:  # those without go anywhere
                stood.setdefault(record.partition, {}).setdefault(run.place)
            told = run.acknowledged.get(named[1])
            if told is not None and (told.partition, told.offset) != (record.partition, record.offset):
                violated(f"output {named} stands at {record}, not at {told}")
        for run in self.truth.runs:
            for index in run.acknowledged:
                if (run.number, index) not in first:
                    violated(f"output {index} of {run.place} #{run.number} was acknowledged and is not in the log")
        for places in stood.values():
            self._check_order(list(places))

    def _check_order(self, places: list[Place]) -> None:
        latest: dict[int, Place] = {}
        for place in places:
            lane = self.truth.lane_of(place)
            if lane is None or place not in self.truth.over_by_outputs:
                continue
            before = latest.get(id(lane))
            if before is not None and before.offset > place.offset:
                self.truth.violated(f"the outputs of {before} stand before those of {place}")
            latest[id(lane)] = place


def _stable_hash(line: str) -> int:
    """The same in every process."""
    return crc32(line.encode())
