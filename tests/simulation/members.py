"""One member: a consumer on a client that tells what its listener hears, from its coming to its end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aioparallel.config.handling import Ordering
from aioparallel.config.policies import FailurePolicy, Producing
from aioparallel.consumer import ParallelConsumer
from aioparallel.group.client import CommitFault, Fetched
from aioparallel.observe.stats import Stats
from aioparallel.records.errors import ClientError, ConsumerStateError
from aioparallel.records.record import Outgoing, Produced, Record, TopicPartition
from aioparallel.testing.memory import InMemoryProducer, Request

from .behaviours import Behaviours, run_of
from .overheard import WatchedClient
from .stage import GROUP, TOPIC, Stage, order_by_value
from .truth import Hold, Place

__all__ = ["Member"]

_TO_REPLACE = 0.05  # seconds that free slots may stand beside ready lanes: a worker was cancelled from outside
_OVERHEAD = 256  # bytes that an unacknowledged output counts beside its own


class Member:
    """Comes with :meth:`come`, and is gone when its task has ended."""

    def __init__(self, play: Stage, name: str, *, until_end: bool) -> None:
        self.play = play
        self.name = name
        self.may_end_with = {"NoneType"}
        self.is_open = False
        self.is_leaving = False
        self.ended_with: BaseException | None = None
        self._resumes = 0
        self._largest_fetch = 0
        self._unsaid: dict[TopicPartition, Hold] = {}
        self.is_committing = False
        self._said: dict[TopicPartition, Hold | None] = {}  # by the commit under way
        self._not_its_own: set[TopicPartition] = set()  # what another member had when the commit was sent
        self._committed_at = 0.0
        self._idle_since: tuple[float, int] | None = None
        self.client = WatchedClient(self)
        fields = play.plan.options.copy()
        fields["failures"] = self._failures()
        fields["producing"] = Producing(
            max_unacknowledged_bytes=play.plan.max_unacknowledged_bytes,
            delivery_timeout=play.plan.delivery_timeout,
            on_produced=self._produced,
        )
        if play.plan.order_by:
            fields["order_by"] = order_by
        if play.plan.resources:
            fields["resources"] = {"first": self._resource, "second": self._resource}
        if until_end:
            fields["until"] = "end"
            self.may_end_with.add("ClientError")  # the end offsets were not told
        producer = InMemoryProducer(play.broker, delivery_timeout=play.plan.delivery_timeout)
        self.consumer = ParallelConsumer(TOPIC, group_id=GROUP, client=self.client, producer=producer, **fields)
        self.options = self.consumer.options
        self.most_at_once = self.options.max_concurrency
        self.was_paused = False
        self.task: asyncio.Task[None]

    def _failures(self) -> FailurePolicy:
        plan = self.play.plan
        match plan.dead_letter:
            case "topic":
                return FailurePolicy(retry=plan.retry, dead_letter="dlq")
            case "function":
                return FailurePolicy(retry=plan.retry, dead_letter=self._put_away)
            case _:
                if plan.give_up == "skip":
                    return FailurePolicy(retry=plan.retry, give_up="skip")
                self.may_end_with.add("RecordStopped")
                return FailurePolicy(retry=plan.retry)

    # -- its life

    def come(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._live(), name=f"member {self.name}")

    async def _live(self) -> None:
        try:
            async with self.consumer:
                self.is_open = True
                await self.consumer.run(Behaviours(self).handle)  # type: ignore[arg-type]  # it returns wrong things, too
        except BaseException as error:
            self.ended_with = error
        finally:
            self.is_open = False
            self.is_leaving = True
            self.play.member_ended(self)

    def check_end(self) -> None:
        """Whether it has ended as it may."""
        kind = type(self.ended_with).__name__
        known = self.may_end_with
        if kind in known or (isinstance(self.ended_with, ClientError) and "ClientError" in known):
            return
        self.play.truth.violated(f"{self.name} ended with {self.ended_with!r}")

    def stop(self, *, drain: bool = True) -> None:
        self.is_leaving = True
        self.play.truth.quiet.setdefault(self.name, asyncio.get_running_loop().time())
        self.play.tell(lambda: f"{self.name} is told to stop{'' if drain else ' without drain'}")
        self.consumer.stop(drain)

    def cancel(self) -> None:
        """Wherever it is: opening, running, leaving."""
        self.is_leaving = True
        self.may_end_with.add("CancelledError")
        self.play.tell(lambda: f"{self.name} is cancelled")
        self.task.cancel()

    def crash(self) -> None:
        """Its connection is gone for good: the group must find out by itself."""
        self.is_leaving = True
        self.may_end_with |= {"ClientError", "ConsumerStateError"}  # the latter before it has subscribed
        self.play.truth.crashed.add(self.name)
        self.play.tell(lambda: f"{self.name} crashes")
        self.client.crash()

    def pause(self, seconds: float) -> None:
        """Pause, and resume after a while."""
        self._resumes += 1
        number = self._resumes
        self.play.truth.quiet.setdefault(self.name, asyncio.get_running_loop().time())
        self.play.tell(lambda: f"{self.name} pauses for {seconds:.3f} s")
        self.consumer.pause()
        self.play.later(seconds, lambda: self._resume(number))

    def _resume(self, number: int) -> None:
        if number == self._resumes and not self.is_leaving:
            self.play.truth.quiet.pop(self.name, None)
            self.play.tell(lambda: f"{self.name} resumes")
            self.consumer.resume()

    def pause_some(self, record: Record[Any, Any], rng: random.Random) -> None:
        """Pause a topic, a partition, or keys, and resume after a while."""
        consumer, number = self.consumer, rng.randrange(self.play.plan.partitions)
        keys = [key for key in self.play.plan.keys if key is not None]
        kinds: list[tuple[Any, Any]] = [
            (partial(consumer.pause, TOPIC), partial(consumer.resume, TOPIC)),
            (
                partial(consumer.pause, TopicPartition(TOPIC, number)),
                partial(consumer.resume, TopicPartition(TOPIC, number)),
            ),
        ]
        if self.options.ordering is Ordering.KEY and keys and not self.play.plan.order_by:
            some = rng.sample(keys, rng.randint(1, min(3, len(keys))))
            kinds.append((partial(consumer.pause_keys, TOPIC, *some), partial(consumer.resume_keys, TOPIC, *some)))
        pause, resume = rng.choice(kinds)
        pause()
        self.was_paused = True
        self.play.tell(lambda: f"{self.name} pauses {consumer.paused}")
        self.play.later(rng.uniform(0, 0.6), resume)

    def is_paused(self, record: Record[Any, Any]) -> bool:
        """Whether it must not start now. A task of its own starts later than it was decided."""
        paused = self.consumer.paused
        return self.options.isolation != "task" and bool(
            paused.topics
            or record.topic_partition in paused.partitions
            or (not self.play.plan.order_by and record.raw_key in paused.keys.get(TOPIC, ()))
        )

    def set_concurrency(self, most: int) -> None:
        """Run more handlers at once, or fewer."""
        if self.options.max_parked is None or self.options.max_parked >= 2 * most:
            self.play.tell(lambda: f"{self.name} runs {most} at once")
            self.consumer.max_concurrency = most
            self.most_at_once = max(self.most_at_once, most)

    async def commit_now(self) -> None:
        """A commit that says that it was acknowledged holds all that had ended before."""
        truth, now = self.play.truth, asyncio.get_running_loop().time()
        before = {
            hold: {offset for offset, done_at in hold.done.items() if done_at <= now}
            for (name, _), hold in truth.holds.items()
            if name == self.name and hold.is_sound
        }
        await self.consumer.commit_now()
        for hold, done in before.items():
            missing = done - self.play.committed_offsets(hold.partition)
            if missing and hold.is_sound and self._can_tell_of_commits:
                truth.violated(f"{self.name} commit_now() left out {hold.partition} {sorted(missing)[:5]}")

    @property
    def _can_tell_of_commits(self) -> bool:
        """Whether what was just acknowledged must stand there as a whole: no map is cut, no older commit comes late."""
        plan = self.play.plan
        return plan.metadata_limit > 1_000 and Request.COMMIT not in plan.faults

    # -- what it tells

    def _produced(self, record: Record[Any, Any], output: Outgoing, place: Produced) -> None:
        truth = self.play.truth
        named = run_of(output)
        if named is None:
            truth.put_away(Place(record.topic_partition, record.offset))
            return
        number, index = named
        truth.acknowledged(truth.runs[number], index, place)

    async def _put_away(self, record: Record[Any, Any], error: Exception) -> None:
        rng = self.play.rng_of(record.partition, record.offset, self.play.count("put away"))
        await asyncio.sleep(rng.uniform(0, 0.1))
        if rng.random() < 0.3 and not self.play.is_healed:
            raise rng.choice((RuntimeError("not now"), asyncio.CancelledError()))
        self.play.truth.put_away(Place(record.topic_partition, record.offset))

    @asynccontextmanager
    async def _resource(self) -> AsyncIterator[object]:
        await asyncio.sleep(0.01)
        self.play.open_resources += 1
        try:
            yield object()
        finally:
            # Closed, whoever cancels it.
            self.play.open_resources -= 1
            await asyncio.sleep(0.01)

    def describe(self) -> str:
        """For the story."""
        try:
            stats = self.consumer.stats()
        except ConsumerStateError as error:
            return f"{self.name}: {error}"
        counts = {
            name: getattr(stats, name) for name in ("buffered", "parked", "in_flight", "producing", "ready_lanes")
        }
        parts = [
            f"{p.topic}-{p.partition} {p.state} from {p.committed} to {p.position} incomplete {p.incompletes} "
            f"buffered {p.buffered} parked {p.parked} cut {p.map_cut_at}{' retries only' if p.retries_only else ''}"
            for p in stats.partitions
            if p.incompletes or p.lag
        ]
        return f"{self.name}: {stats.intake}, {counts}, {parts}, {self.consumer.health().problems}"

    # -- what must hold at any moment

    def look(self) -> None:
        """I4 and I5, as the consumer itself tells, and as its handlers do."""
        try:
            stats = self.consumer.stats()
        except ConsumerStateError:
            return  # it does not run yet
        violated = self.play.truth.violated
        running = self.play.truth.running.get(self.name, {})
        begun = sum(1 for run in running if not run.has_returned)
        if begun > self.most_at_once:
            violated(f"{self.name} runs {begun} handlers, max_concurrency={self.most_at_once}")
        for name, found, bound in self._bounds(stats):
            if not 0 <= found <= bound:
                violated(f"{self.name} {name} = {found}, not within 0..{bound}")
        parts = stats.buffered + stats.parked + stats.in_flight + stats.producing + stats.ended + stats.dropped
        if stats.admitted != parts:
            violated(f"{self.name} admitted {stats.admitted} is not {parts}: {stats}")
        self._look_for_idle_hands(stats)
        self._look_at_unsaid()
        stuck = [p for p in self.consumer.health().problems if p.kind == "handler_stuck"]
        cancelled = sum(run.was_cancelled for run in running)
        if len(stuck) > cancelled:
            violated(f"{self.name} calls handlers stuck that are not: {[p.message for p in stuck]}")

    def _bounds(self, stats: Stats) -> list[tuple[str, int, int]]:
        options, plan = self.options, self.play.plan
        # A commit counts at most once over its bound: the outputs of one record may be larger than what is left.
        outputs = plan.max_unacknowledged_bytes // _OVERHEAD + 1
        putting_away = 100 + self.most_at_once
        twice = 2 if self.was_paused else 1  # what is paused counts half
        bounds = [
            ("in_flight", stats.in_flight, self.most_at_once),
            ("buffered", stats.buffered, twice * options.max_buffered),
            ("producing", stats.producing, outputs + putting_away),
            ("buffered_bytes", stats.buffered_bytes, twice * (options.max_buffered_bytes + self._largest_fetch)),
        ]
        if not {"produce", "produce_many", "stream", "defer_outputs"} & set(plan.behaviours) and not plan.dead_letter:
            # Outputs that fail together may pass it.
            changed = self.most_at_once - min(options.max_concurrency, self.consumer.max_concurrency)
            bounds.append(("parked", stats.parked, twice * (options.parked_bound + changed)))
        return bounds

    def commits(self, partitions: Iterable[TopicPartition]) -> None:
        """What the answer will be about is what it holds now, not what it may hold by then."""
        self.is_committing = True
        self._said = {partition: self.play.truth.holds.get((self.name, partition)) for partition in partitions}
        self._not_its_own = {partition for partition, hold in self._said.items() if hold is None or hold.is_void}

    def committed(self, results: Mapping[TopicPartition, CommitFault | None]) -> None:
        """What became of a commit: what was not taken must be said again, and what another member had must not be taken
        (I7)."""
        self.is_committing, self._committed_at = False, asyncio.get_running_loop().time()
        for partition, fault in results.items():
            self._unsaid.pop(partition, None)
            if fault is None and partition in self._not_its_own:
                self.play.truth.violated(f"{self.name} has committed {partition}, which another member had")
            if fault is not None and fault is not CommitFault.FENCED:
                hold = self._said.get(partition)
                if hold is not None and hold.is_sound:
                    self._unsaid[partition] = hold

    def _look_at_unsaid(self) -> None:
        # One request is under way at a time: within so long without any, the next round has come.
        now, bound = asyncio.get_running_loop().time(), 2 * self.options.commit_interval + 0.3
        for partition, hold in list(self._unsaid.items()):
            if not hold.is_sound or self.is_leaving:
                del self._unsaid[partition]
            elif not self.is_committing and now - self._committed_at > bound:
                del self._unsaid[partition]
                self.play.truth.violated(f"{self.name} did not repeat a commit of {partition} that was not taken")

    def _look_for_idle_hands(self, stats: Stats) -> None:
        """Ready lanes and free slots beside each other, for longer than it takes to replace a worker."""
        now, calls = asyncio.get_running_loop().time(), len(self.play.truth.runs)
        is_idle = stats.ready_lanes and stats.in_flight < stats.max_concurrency and stats.intake != "stopped"
        if not is_idle or self.is_leaving or self.name in self.play.truth.quiet:
            self._idle_since = None
        elif self._idle_since is None or self._idle_since[1] != calls:
            self._idle_since = now, calls
        elif now - self._idle_since[0] > _TO_REPLACE:
            self._idle_since = None
            self.play.truth.violated(f"{self.name} has {stats.ready_lanes} ready lanes, free slots and starts nothing")

    def fetched(self, taken: list[Fetched]) -> None:
        """What one fetch has brought."""
        size = sum(len(r.key or b"") + len(r.value or b"") for one in taken for r in one.records)
        self._largest_fetch = max(self._largest_fetch, size)


def order_by(record: Record[Any, Any]) -> object:
    """See :func:`order_by_value`."""
    return order_by_value(record.raw_value)
