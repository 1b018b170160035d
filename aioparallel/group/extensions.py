"""All extensions of one consumer, called together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from aioparallel.config.extension import ConsumerContext, Extension, PartitionState, overrides
from aioparallel.config.policies import Transactions
from aioparallel.engine.sinks import DeadLetterSink
from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.group.offset_stores import OffsetStore, Positions
from aioparallel.group.sessions import Session
from aioparallel.handlers.stack import Handlers
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.observe.stats import Stats
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import Outgoing, Record, TopicPartition

__all__ = ["ExtendedOffsets", "ExtendedPositions", "Extensions"]

T = TypeVar("T")

_ENDING: Final = 60.0
"""Seconds for ``finish`` or ``stop`` of one extension. A tracker drains and commits in its ``stop``."""
_HURRIED: Final = 5.0
"""The same for ``stop`` after a hurried stop."""
_CLOSING: Final = 10.0
"""The same for ``close``, as for a resource."""
_AT_MOST: Final = 10
"""Partitions that are told of one by one."""


class Extensions:
    """Calls each hook of those that override it, in order. Raises ConfigurationError for what is no extension."""

    def __init__(self, extensions: Iterable[Extension] = ()) -> None:
        self.all = tuple(extensions)
        for one in self.all:
            if not isinstance(one, Extension):
                raise ConfigurationError("extensions", one, "must be instances of aioparallel.Extension")
        if len(set(map(id, self.all))) < len(self.all):
            raise ConfigurationError("extensions", list(self.all), "has one of them twice")
        self._saving = self._with("before_commit")
        self._writing = self._with("commit_outputs")
        self._assigning = self._with("assigned")
        self._releasing = self._with("released")[::-1]
        self._working = self._with("work")
        self.arrival_topics = frozenset(topic for one in self.all for topic in one.arrival_topics)
        """Topics in which arrivals of records are noted."""
        self._ready = [(one, set[TopicPartition]()) for one in self._with("restore")]  # restored, by each
        self.on_failure: Callable[[BaseException], None] | None = None
        """Ends the run."""
        # Partitions that were refused at the last commit: by which extension, why, and in which assignment.
        self._refusals: dict[TopicPartition, tuple[Extension, CommitFault, int]] = {}
        self._begun: list[Extension] = []
        self._assignments: Counter[TopicPartition] = Counter()  # and releases, so far

    def _with(self, hook: str) -> tuple[Extension, ...]:
        return tuple(one for one in self.all if _has(one, hook))

    def only(self, hook: str, ask: Callable[[Extension], T | None]) -> T | None:
        """Return the single replacement for this hook, or None. Raises ConfigurationError for two."""
        found: tuple[Extension, T] | None = None
        for one in self._with(hook):
            replacement = ask(one)
            if replacement is None:
                continue
            if found is not None:
                raise ConfigurationError(
                    "extensions", one, f"has a {hook}, and so has {found[0]!r}: a consumer can have one of them"
                )
            found = one, replacement
        return None if found is None else found[1]

    # -- the consumer -----------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """A hook has raised in the middle of a step that must be finished: end the run."""
        if self.on_failure is None:
            raise error
        self.on_failure(error)

    def fail_soon(self, error: BaseException) -> None:
        """The same in the next step of the loop: within this one the engine hands completed records over."""
        asyncio.get_running_loop().call_soon(self.fail, error)

    def attach(self, context: ConsumerContext) -> None:
        """They belong to this consumer now."""
        for one in self.all:
            if one.__dict__.get("_is_attached"):
                raise ConfigurationError(
                    "extensions", one, "is another consumer's already: each consumer needs extensions of its own"
                )
            object.__setattr__(one, "_is_attached", True)  # it may be a frozen dataclass
            is_transactional = isinstance(context.options.commits, Transactions)
            if not is_transactional and _has(one, "commit_outputs") and not _has(one, "before_commit"):
                raise ConfigurationError(
                    "extensions", one, "has commit_outputs, which needs commits=Transactions(...), or a before_commit"
                )
            one.attach(context)

    def topics(self) -> dict[str, str]:
        """The topics that they write, and the option that names each."""
        return {topic: option for one in self._with("topics") for topic, option in one.topics().items()}

    async def check(self, partitions: Collection[TopicPartition], timeout: float) -> None:
        """Connect and check."""
        for one in self._with("check"):
            await one.check(partitions, timeout)

    async def close(self) -> None:
        """Close all, whatever one of them raises."""
        await _each_in_turn([partial(_within, _CLOSING, one.close) for one in reversed(self._with("close"))])

    # -- the run ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all."""
        for one in self.all:
            if _has(one, "start") or _has(one, "stop"):
                self._begun.append(one)
                await one.start()

    async def stop(self, hurried: asyncio.Event) -> None:
        """Stop those that were started, once, whatever one of them raises. When ``hurried`` is set, each of them has
        less time."""
        begun, self._begun = self._begun, []
        await _each_in_turn([partial(_within, _ENDING, one.stop, hurried) for one in reversed(begun)])

    @property
    def work(self) -> list[Callable[[], Any]]:
        """What runs beside the records."""
        return [one.work for one in self._working]

    async def finish(self) -> None:
        """The run ends, all is committed."""
        for one in self._with("finish"):
            await _within(_ENDING, one.finish)

    # -- partitions -------------------------------------------------------------------------------------

    def assigned(self, session: Session) -> Sequence[PartitionState]:
        """What they keep for a new session."""
        self._forget(session.partition)
        found: list[PartitionState] = []
        for one in self._assigning:
            try:
                state = one.assigned(session)
            except Exception as error:
                self.fail(error)
            else:
                found += [] if state is None else [state]
        return found

    def released(self, partition: TopicPartition) -> None:
        """The partition went."""
        self._forget(partition)
        for one in self._releasing:
            try:
                one.released(partition)
            except Exception as error:
                self.fail(error)

    def _forget(self, partition: TopicPartition) -> None:
        self._assignments[partition] += 1
        for _, ready in self._ready:
            ready.discard(partition)

    @property
    def restores(self) -> bool:
        """Whether partitions wait until something is restored."""
        return bool(self._ready)

    async def restore(
        self, found: Mapping[TopicPartition, Committed | None], ends: float
    ) -> Collection[TopicPartition]:
        """Those that all have restored, by the time ``ends`` of the loop's clock. One that was ready before stays so
        until it is assigned anew or released."""
        before = {partition: self._assignments[partition] for partition in found}
        waiting = dict(found)
        for one, ready in self._ready:
            wanted = {partition: at for partition, at in waiting.items() if partition not in ready}
            if wanted:
                restored = await one.restore(wanted, _left(ends))
                ready |= {p for p in restored if p in wanted and self._assignments[p] == before[p]}
            waiting = {partition: at for partition, at in waiting.items() if partition in ready}
            if not waiting:
                break
        return [partition for partition in waiting if self._assignments[partition] == before[partition]]

    # -- commits ----------------------------------------------------------------------------------------

    @property
    def saves(self) -> bool:
        """Whether something is saved before a commit."""
        return bool(self._saving)

    async def before_commit(
        self, positions: Mapping[TopicPartition, Committed], ends: float
    ) -> dict[TopicPartition, CommitFault]:
        """Save what belongs to these positions. Returns the partitions that must not be committed.

        Each extension gets half of the time that is left until ``ends`` on the loop's clock: some is left for the
        commit. One that takes all of it is cancelled, and refuses.
        """
        refused: dict[TopicPartition, CommitFault] = {}
        before = {partition: self._assignments[partition] for partition in positions}
        for one in self._saving:
            wanted = {partition: at for partition, at in positions.items() if partition not in refused}
            if wanted:
                found = await self._saved(one, wanted, ends)
                for partition in wanted:
                    fault = found.get(partition)  # None is no fault; what it says of others does not matter
                    if fault is not None:
                        refused[partition] = fault
                        self._refusals[partition] = one, fault, before[partition]
                    elif self._refusals.get(partition, (None,))[0] is one:
                        del self._refusals[partition]
        return refused

    @staticmethod
    async def _saved(
        one: Extension, positions: Mapping[TopicPartition, Committed], ends: float
    ) -> Mapping[TopicPartition, CommitFault]:
        limit = asyncio.timeout_at(ends)
        try:
            async with limit:
                return await one.before_commit(positions, _left(ends) / 2)
        except TimeoutError:
            if not limit.expired():
                raise
            return dict.fromkeys(positions, CommitFault.RETRIABLE)

    def refusals(self, partitions: Collection[TopicPartition]) -> list[str]:
        """Which of these partitions extensions have refused at the last commit, and why."""
        return [
            _told(partition, *self._refusals[partition][:2]) for partition in partitions if partition in self._refusals
        ]

    def commit_outputs(self, partition: TopicPartition, committed: Committed) -> list[Outgoing]:
        """What is written in the transaction that commits this."""
        return [output for one in self._writing for output in one.commit_outputs(partition, committed)]

    def commit_outputs_too_large(self) -> None:
        """One of these was refused for its size."""
        for one in self._writing:
            one.commit_outputs_too_large()

    # -- attempts ---------------------------------------------------------------------------------------

    def handlers(self, handlers: Handlers) -> Handlers:
        """What runs in place of these."""
        for one in self._with("handlers"):
            handlers = one.handlers(handlers)
        return handlers

    def dead_letter_sink(self, sink: DeadLetterSink | None) -> DeadLetterSink | None:
        """Where records go that failed for good."""
        for one in self._with("dead_letter_sink"):
            sink = one.dead_letter_sink(sink)
        return sink

    @property
    def may_attempt(self) -> list[Callable[[Record[Any, Any]], None]]:
        """What looks at a record before it is deserialised."""
        return [one.may_attempt for one in self._with("may_attempt")]

    @property
    def before_attempt(self) -> list[Callable[[Record[Any, Any]], None]]:
        """What looks at it after that."""
        return [one.before_attempt for one in self._with("before_attempt")]

    @property
    def middleware(self) -> list[Callable[[Any, Any], Any]]:
        """What runs around an attempt, the first outermost."""
        return [one.attempt for one in self._with("attempt")]

    # -- looking ----------------------------------------------------------------------------------------

    def problems(self) -> list[Problem]:
        """Return the problems of all extensions."""
        found = [problem for one in self._with("problems") for problem in one.problems()]
        silent = [
            (partition, one, fault)
            for partition, (one, fault, number) in self._refusals.items()
            if number == self._assignments[partition] and not _has(one, "problems")
        ]
        return found + [Problem(ProblemKind.EXTENSION, _told(*one)) for one in silent[:_AT_MOST]]

    def stats(self, found: Stats) -> Stats:
        """Add the statistics of the extensions."""
        for one in self._with("stats"):
            found = one.stats(found)
        return found


class ExtendedPositions:
    """:class:`~aioparallel.group.offset_stores.Positions` where extensions restore partitions after their positions are
    read. A partition is taken over when all have restored it."""

    def __init__(self, positions: Positions, extensions: Extensions) -> None:
        self._positions = positions
        self._extensions = extensions
        self._releases: Counter[TopicPartition] = Counter()

    async def take_over(
        self, partitions: Collection[TopicPartition], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, Committed | None]:
        """See :class:`~aioparallel.group.offset_stores.Positions`."""
        ends = asyncio.get_running_loop().time() + timeout
        before = {partition: self._releases[partition] for partition in partitions}
        found = await self._positions.take_over(partitions, generation, timeout)
        # One that went meanwhile may be here again, restored for another session that runs by now.
        still = {partition: at for partition, at in found.items() if self._releases[partition] == before[partition]}
        if not still or not self._extensions.restores:
            return still
        ready = await self._extensions.restore(still, ends)
        return {partition: found[partition] for partition in ready if self._releases[partition] == before[partition]}

    async def stored(self, partitions: Collection[TopicPartition], timeout: float) -> Collection[TopicPartition]:
        """See :class:`~aioparallel.group.offset_stores.Positions`."""
        return await self._positions.stored(partitions, timeout)

    def release(self, partition: TopicPartition) -> None:
        """See :class:`~aioparallel.group.offset_stores.Positions`."""
        self._releases[partition] += 1
        self._extensions.released(partition)
        self._positions.release(partition)


class ExtendedOffsets(ExtendedPositions):
    """An :class:`~aioparallel.group.offset_stores.OffsetStore` where extensions save before positions are written."""

    def __init__(self, store: OffsetStore, extensions: Extensions) -> None:
        super().__init__(store, extensions)
        self._store = store

    async def commit(
        self, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """See :class:`~aioparallel.group.offset_stores.OffsetStore`."""
        if not self._extensions.saves:
            return await self._store.commit(positions, generation, timeout)
        ends = asyncio.get_running_loop().time() + timeout
        refused = await self._extensions.before_commit(positions, ends)
        saved = {partition: committed for partition, committed in positions.items() if partition not in refused}
        results: dict[TopicPartition, CommitFault | None] = {**refused}
        if saved:
            results |= await self._store.commit(saved, generation, _left(ends))
        return results


def _has(one: Extension, hook: str) -> bool:
    return overrides(one, Extension, hook)


def _told(partition: TopicPartition, one: Extension, fault: CommitFault) -> str:
    return f"{partition}: {type(one).__name__} refuses its commit ({fault.value})"


async def _within(seconds: float, hook: Callable[[], Awaitable[None]], hurried: asyncio.Event | None = None) -> None:
    limit = asyncio.timeout(seconds)
    hurrying = None if hurried is None else asyncio.create_task(_shorten(limit, hurried), name="aioparallel-hurry")
    try:
        async with limit:
            await hook()
    except TimeoutError as error:
        if not limit.expired():
            raise
        had = f"{_HURRIED:g} s of a hurried stop" if hurried is not None and hurried.is_set() else f"{seconds:g} s"
        raise TimeoutError(f"{getattr(hook, '__qualname__', hook)} did not end within {had}") from error
    finally:
        if hurrying is not None:
            hurrying.cancel()


async def _shorten(limit: asyncio.Timeout, hurried: asyncio.Event) -> None:
    await hurried.wait()
    ends, soon = limit.when(), asyncio.get_running_loop().time() + _HURRIED
    if ends is not None and soon < ends:
        limit.reschedule(soon)


async def _each_in_turn(calls: Iterable[Callable[[], Any]]) -> None:
    """Await each, and raise the first error when all are done."""
    first: BaseException | None = None
    for call in calls:
        try:
            await call()
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first


def _left(ends: float) -> float:
    return max(0.0, ends - asyncio.get_running_loop().time())
