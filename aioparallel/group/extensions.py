"""Calls the hooks of all extensions of one consumer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aioparallel.config.extension import ConsumerContext, Extension, PartitionState, overrides
from aioparallel.config.policies import Transactions
from aioparallel.event_loop.left_behind import ended
from aioparallel.event_loop.waiting import OutOfTime, within
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.group.offset_stores import OffsetStore, Positions
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.records.errors import ConfigurationError, WorkCancelled
from aioparallel.records.record import Outgoing, TopicPartition

if TYPE_CHECKING:
    from aioparallel.http.requests import AroundRequests, SendRequest

__all__ = ["ExtendedOffsets", "ExtendedPositions", "Extensions"]

T = TypeVar("T")

_ENDING: Final = 60.0
"""Seconds for ``finish`` or ``stop`` of one extension. A tracker drains and commits in its ``stop``."""
_HURRIED: Final = 5.0
"""The same for ``stop`` after a hurried stop."""
_CLOSING: Final = 10.0
"""The same for ``close``, as for a resource."""
_IGNORING: Final = 5.0
"""Seconds that a hook gets to end once it is cancelled."""
_AT_MOST: Final = 10
"""The most partitions that are listed one by one."""


class Extensions:
    """Calls each hook of the extensions that override it, in order. Raises ConfigurationError for other objects."""

    def __init__(self, extensions: Iterable[Extension] = ()) -> None:
        self.all = tuple(extensions)
        for one in self.all:
            if not isinstance(one, Extension):
                raise ConfigurationError("extensions", one, "must be instances of aioparallel.Extension")
        if len(set(map(id, self.all))) < len(self.all):
            raise ConfigurationError("extensions", list(self.all), "has one of them twice")
        self._saving = self._with("before_commit")
        self.saves = bool(self._saving)
        """Whether an extension saves something before a commit."""
        self._writing = self._with("commit_outputs")
        self.commit_ended = self.listener("commit_ended")
        """Reports the answer to a commit; None: nobody wants it."""
        # Each with the partitions that it has restored.
        self._restoring = [(one, set[TopicPartition]()) for one in self._with("restore")]
        self.restores = bool(self._restoring)
        """Whether partitions wait until an extension has restored something."""
        self.arrival_topics = frozenset(topic for one in self.all for topic in one.arrival_topics)
        """Topics in which arrivals of records are noted."""
        self.on_failure: Callable[[BaseException], None] | None = None
        """Ends the run."""
        self.changes: Counter[TopicPartition] = Counter()
        """How often each partition was assigned or released."""
        # Partitions that were refused at the last commit: by which extension, why, and their ``changes`` then.
        self._refusals: dict[TopicPartition, tuple[Extension, CommitFault, int]] = {}
        self._begun: list[Extension] = []
        self.checking: Extension | None = None
        """The extension whose ``check`` runs, or has raised."""

    def _with(self, hook: str) -> list[Extension]:
        return [one for one in self.all if _has(one, hook)]

    def hooks(self, hook: str) -> list[Callable[..., Any]]:
        """Return this hook of each extension that overrides it."""
        return [getattr(one, hook) for one in self._with(hook)]

    def listener(self, hook: str) -> Callable[..., None] | None:
        """Return a function that calls this hook of each extension, and ends the run if one raises. None: no extension
        overrides it. Errors of any kind are kept from the engine: in the middle of a turn, they would keep records from
        being counted."""
        listening = self.hooks(hook)
        if not listening:
            return None

        def call(*arguments: object) -> None:
            try:
                for one in listening:
                    one(*arguments)
            except BaseException as error:
                self.fail_soon(error)

        def call_one(*arguments: object) -> None:
            try:
                first(*arguments)
            except BaseException as error:
                self.fail_soon(error)

        first = listening[0]
        return call_one if len(listening) == 1 else call  # a loop takes longer

    def through(self, hook: str, value: T) -> T:
        """Pass a value through this hook of each extension, and return the result."""
        for call in self.hooks(hook):
            value = call(value)
        return value

    @property
    def around_requests(self) -> AroundRequests | None:
        """Puts all extensions that observe requests around what sends them; None: there are none."""
        hooks = self.hooks("around_requests")
        if not hooks:
            return None

        def around(send: SendRequest, kept: Collection[str] | None) -> SendRequest:
            for hook in reversed(hooks):  # the first is outermost
                send = hook(send, kept)
            return send

        return around

    def only(self, hook: str, *arguments: object) -> Any:
        """Return the replacement that this hook of one extension returns; None if none does. Raises ConfigurationError
        if two do."""
        found = [(one, made) for one in self._with(hook) if (made := getattr(one, hook)(*arguments)) is not None]
        if len(found) > 1:
            raise ConfigurationError(
                "extensions", found[1][0], f"has a {hook}, and so has {found[0][0]!r}: a consumer can have one of them"
            )
        return found[0][1] if found else None

    # -- the consumer -----------------------------------------------------------------------------------

    def attach(self, context: ConsumerContext) -> None:
        """Attach all extensions to this consumer."""
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
        """Return the topics that the extensions write, and the option that names each."""
        return {topic: option for topics in self.hooks("topics") for topic, option in topics().items()}

    async def check(self, partitions: Collection[TopicPartition], timeout: float) -> None:
        """Let each extension connect and check what it needs."""
        for one in self._with("check"):
            self.checking = one
            await one.check(partitions, timeout)
        self.checking = None

    async def close(self) -> None:
        """Close all extensions, the last one first."""
        await _end_each(_CLOSING, reversed(self.hooks("close")))

    # -- the run ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all extensions."""
        for one in self.all:
            if _has(one, "start") or _has(one, "stop"):
                self._begun.append(one)
                await one.start()

    async def stop(self, hurried: asyncio.Event) -> None:
        """Stop the extensions that were started, the last one first. Once ``hurried`` is set, each has less time. A
        second call does nothing."""
        begun, self._begun = self._begun, []
        await _end_each(_ENDING, [one.stop for one in reversed(begun)], hurried)

    async def finish(self) -> None:
        """Call ``finish`` of all extensions: the run ends, and everything is committed."""
        for finish in self.hooks("finish"):
            await _end(_ENDING, finish)

    def fail(self, error: BaseException) -> None:
        """End the run with the error of a hook. The caller goes on, because its step must be finished."""
        if isinstance(error, asyncio.CancelledError):  # raised by run(), it would look like a cancellation of run()
            cancelled = WorkCancelled("a hook of an extension")
            cancelled.__cause__ = error
            error = cancelled
        if self.on_failure is None:
            raise error
        self.on_failure(error)

    def fail_soon(self, error: BaseException) -> None:
        """End the run in the next step of the loop. In this one the engine reports completed records."""
        asyncio.get_running_loop().call_soon(self.fail, error)

    # -- partitions -------------------------------------------------------------------------------------

    def assigned(self, assignment: Assignment) -> Sequence[PartitionState]:
        """Return what the extensions keep for a new assignment."""
        self._changed(assignment.partition)
        states = [self._called(one.assigned, assignment) for one in self._with("assigned")]
        return [state for state in states if state is not None]

    def released(self, partition: TopicPartition) -> None:
        """Report that a partition was revoked or lost."""
        self._changed(partition)
        for released in reversed(self.hooks("released")):
            self._called(released, partition)

    def _called(self, hook: Callable[[Any], T], argument: object) -> T | None:
        """Return the result of a hook; None if it raises, which ends the run."""
        try:
            return hook(argument)
        except BaseException as error:
            self.fail(error)
            return None

    def _changed(self, partition: TopicPartition) -> None:
        self.changes[partition] += 1
        for _, ready in self._restoring:
            ready.discard(partition)

    async def restore(
        self, found: Mapping[TopicPartition, Committed | None], ends: float
    ) -> Collection[TopicPartition]:
        """Return the partitions that all extensions have restored. ``ends``: the limit, on the loop's clock. A restored
        partition is not restored again until it is assigned anew or released."""
        before = {partition: self.changes[partition] for partition in found}
        waiting = dict(found)
        for one, ready in self._restoring:
            wanted = {partition: at for partition, at in waiting.items() if partition not in ready}
            if wanted:
                restored = await one.restore(wanted, _left(ends))
                ready |= {p for p in restored if p in wanted and self.changes[p] == before[p]}
            waiting = {partition: at for partition, at in waiting.items() if partition in ready}
        return [partition for partition in waiting if self.changes[partition] == before[partition]]

    # -- commits ----------------------------------------------------------------------------------------

    async def before_commit(
        self, positions: Mapping[TopicPartition, Committed], ends: float
    ) -> dict[TopicPartition, CommitFault]:
        """Let the extensions save what belongs to these positions. Returns the partitions that must not be committed.

        Each extension gets half of the time until ``ends`` on the loop's clock, so that some is left for the commit. An
        extension that uses all of the time is cancelled, and its partitions are not committed.
        """
        refused: dict[TopicPartition, CommitFault] = {}
        before = {partition: self.changes[partition] for partition in positions}
        for one in self._saving:
            wanted = {partition: at for partition, at in positions.items() if partition not in refused}
            if not wanted:
                break
            try:
                found = await within(_left(ends), one.before_commit(wanted, _left(ends) / 2))
            except OutOfTime:
                found = dict.fromkeys(wanted, CommitFault.RETRIABLE)
            for partition in wanted:
                fault = found.get(partition)  # None is no fault; faults of other partitions do not count
                if fault is not None:
                    refused[partition] = fault
                    self._refusals[partition] = one, fault, before[partition]
                elif self._refusals.get(partition, (None,))[0] is one:
                    del self._refusals[partition]
        return refused

    def refusals(self, partitions: Collection[TopicPartition]) -> list[str]:
        """Return which extensions refused these partitions at the last commit, and why."""
        refused = [(partition, self._refusals[partition]) for partition in partitions if partition in self._refusals]
        return [_refusal(partition, one, fault) for partition, (one, fault, _) in refused]

    def commit_outputs(self, partition: TopicPartition, committed: Committed) -> list[Outgoing]:
        """Return what is written in the transaction that commits this position."""
        return [output for one in self._writing for output in one.commit_outputs(partition, committed)]

    def commit_outputs_too_large(self) -> None:
        """Report that one of these outputs was refused for its size."""
        for one in self._writing:
            one.commit_outputs_too_large()

    # -- health -----------------------------------------------------------------------------------------

    def problems(self) -> list[Problem]:
        """Return the problems of all extensions. For an extension that reports none, the partitions that it refused."""
        found = [problem for problems in self.hooks("problems") for problem in problems()]
        refused = [
            _refusal(partition, one, fault)
            for partition, (one, fault, changes) in self._refusals.items()
            if changes == self.changes[partition] and not _has(one, "problems")
        ]
        return found + [Problem(ProblemKind.EXTENSION, text) for text in refused[:_AT_MOST]]


class ExtendedPositions:
    """A :class:`~aioparallel.group.offset_stores.Positions` with extensions. They restore a partition once its position
    is known. The partition is taken over when all have restored it."""

    def __init__(self, positions: Positions, extensions: Extensions) -> None:
        self._positions = positions
        self._extensions = extensions

    async def take_over(
        self, partitions: Collection[TopicPartition], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, Committed | None]:
        """Take the partitions over, and let the extensions restore them."""
        ends, changes = asyncio.get_running_loop().time() + timeout, self._extensions.changes
        before = {partition: changes[partition] for partition in partitions}
        found = await self._positions.take_over(partitions, generation, timeout)
        # A partition that was released meanwhile may be assigned again, and another assignment runs already.
        still = {partition: at for partition, at in found.items() if changes[partition] == before[partition]}
        if not still or not self._extensions.restores:
            return still
        return {partition: found[partition] for partition in await self._extensions.restore(still, ends)}

    async def stored(self, partitions: Collection[TopicPartition], timeout: float) -> Collection[TopicPartition]:
        """Return those of these partitions that have a stored position."""
        return await self._positions.stored(partitions, timeout)

    def release(self, partition: TopicPartition) -> None:
        """Forget the partition."""
        self._extensions.released(partition)
        self._positions.release(partition)


class ExtendedOffsets(ExtendedPositions):
    """An :class:`~aioparallel.group.offset_stores.OffsetStore` with extensions. They save before positions are
    written."""

    def __init__(self, store: OffsetStore, extensions: Extensions) -> None:
        super().__init__(store, extensions)
        self._store = store

    async def commit(
        self, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """Write the positions of the partitions that no extension refuses."""
        if not self._extensions.saves:
            return await self._write(positions, generation, timeout)
        ends = asyncio.get_running_loop().time() + timeout
        refused = await self._extensions.before_commit(positions, ends)
        saved = {partition: committed for partition, committed in positions.items() if partition not in refused}
        results: dict[TopicPartition, CommitFault | None] = {**refused}
        if saved:
            results |= await self._write(saved, generation, _left(ends))
        return results

    async def _write(
        self, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        commit_ended = self._extensions.commit_ended
        if commit_ended is None:
            return await self._store.commit(positions, generation, timeout)
        began = perf_counter()
        results = await self._store.commit(positions, generation, timeout)
        faults = {partition: results.get(partition, CommitFault.RETRIABLE) for partition in positions}
        commit_ended(
            positions, {at: fault for at, fault in faults.items() if fault is not None}, perf_counter() - began
        )
        return results


def _has(one: Extension, hook: str) -> bool:
    return overrides(one, Extension, hook)


def _refusal(partition: TopicPartition, one: Extension, fault: CommitFault) -> str:
    return f"{partition}: {type(one).__name__} refuses its commit ({fault.value})"


async def _end(seconds: float, hook: Callable[[], Awaitable[None]], hurried: asyncio.Event | None = None) -> None:
    """Await the hook, and cancel it at the limit. One that ignores this is left behind after some seconds more."""
    task = asyncio.get_running_loop().create_task(_awaited(hook), name="aioparallel-hook")
    cancelled = False
    try:
        await _limited(task, seconds, hurried)
    finally:
        if not task.done():
            cancelled = task.cancel()
            await ended((task,), _IGNORING)
    if task.done() and not (cancelled and task.cancelled()):
        try:
            return task.result()
        except asyncio.CancelledError as error:  # raised by the hook itself
            raise WorkCancelled("a hook of an extension") from error
    had = f"{_HURRIED:g} s of a hurried stop" if hurried is not None and hurried.is_set() else f"{seconds:g} s"
    raise TimeoutError(f"{getattr(hook, '__qualname__', hook)} did not end within {had}")


async def _awaited(hook: Callable[[], Awaitable[None]]) -> None:
    await hook()


async def _limited(task: asyncio.Task[None], seconds: float, hurried: asyncio.Event | None) -> None:
    """Wait until the task has ended, or until the limit. Never cancels the task."""
    if hurried is None:
        await asyncio.wait((task,), timeout=seconds)
        return
    loop = asyncio.get_running_loop()
    ends, hurrying = loop.time() + seconds, loop.create_task(hurried.wait(), name="aioparallel-hurry")
    try:
        await asyncio.wait((task, hurrying), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        hurrying.cancel()
    if hurried.is_set():
        await asyncio.wait((task,), timeout=max(0.0, min(_HURRIED, ends - loop.time())))


async def _end_each(
    seconds: float, hooks: Iterable[Callable[[], Awaitable[None]]], hurried: asyncio.Event | None = None
) -> None:
    """Call each hook, even if another one raises. Raises the first error at the end."""
    errors: list[BaseException] = []
    for hook in hooks:
        try:
            await _end(seconds, hook, hurried)
        except BaseException as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _left(ends: float) -> float:
    return max(0.0, ends - asyncio.get_running_loop().time())
