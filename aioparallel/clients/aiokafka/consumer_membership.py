"""Membership in a consumer group of the new protocol (KIP-848): joins, sends heartbeats, takes and gives away single
partitions, leaves.

One coroutine sends the heartbeats, and takes partitions. Another one gives partitions away, as that may take long: the
heartbeats continue meanwhile, and so does everything that is done with the partitions that stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Final, Protocol

import aiokafka.errors as kafka

from aioparallel.clients.aiokafka.group_member import COORDINATOR_MOVED, GroupMember, Place, Then
from aioparallel.clients.aiokafka.group_node import GroupNode, LookUpRefused
from aioparallel.clients.aiokafka.group_refusals import refusal
from aioparallel.clients.aiokafka.topic_names import TopicNames
from aioparallel.clients.messages import UnencodableMessage
from aioparallel.clients.messages.consumer_groups import CONSUMER_GROUP_HEARTBEAT
from aioparallel.group.client import Generation, RebalanceListener
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import InstanceFenced, InstanceInUse
from aioparallel.records.record import TopicPartition

__all__ = ["ConsumerMembership", "Positions"]

logger = logging.getLogger(__name__)

_LONGEST_BACKOFF: Final = 1.0
_NAMES: Final = 3.0
"""Timeout of a request for the names of topics, in seconds."""
_QUICK: Final = 0.2
"""Seconds until the next heartbeat after a change."""
_SLOWER: Final = 1.2
_WITHOUT: Final = 1.0
"""Most seconds between two heartbeats of a member without partitions."""
_FIRST_ASSIGNMENT: Final = 2.0
"""Seconds to wait for partitions before a new member counts as one that has none."""
_RELEASED: Final = 5.0
"""Seconds after a session's end within which the coordinator removes the member."""
_PAUSES: Final = (0.1, 0.3)
"""Seconds between the tries to leave."""
_SOON: Final = 0.5
"""Seconds until the name of a topic is requested again."""


class Positions(Protocol):
    """What is fetched."""

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """These are assigned; nothing is fetched of them yet."""

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch nothing more of these."""

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        """Forget these."""


class ConsumerMembership:
    """See the module. ``on_failure(error)`` is called once if the member cannot continue."""

    def __init__(
        self,
        member: GroupMember,
        node: GroupNode,
        names: TopicNames,
        positions: Positions,
        listener: RebalanceListener,
        *,
        retry_backoff: float,
        on_failure: Callable[[Exception], object],
    ) -> None:
        self._member = member
        self._quick = _QUICK
        self._node = node
        self._names = names
        self._positions = positions
        self._listener = listener
        self._retry_backoff = self._backoff = retry_backoff
        self._on_failure = on_failure
        self._group_id = member.subscribed.group_id
        self._held: dict[Place, TopicPartition] = {}  # owned, and not being given away
        self._giving: dict[Place, TopicPartition] = {}
        self._told = 0  # the epoch that the listener knows
        self._joined_at = 0.0
        self._doubted: int | None = None  # an epoch
        self._has_news = False  # for the listener, once the next heartbeat is answered
        self._must_tell = False
        self._stale: int | None = None  # the last epoch that the coordinator has called stale
        self._look_again = asyncio.Event()
        self._is_hurried = False
        self._rests_until = 0.0  # after a failure
        self._has_joined = False
        self._losses = 0  # since the last answer without one
        self._in_use_until: float | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Join the group."""
        self._spawn(self._run(), "aioparallel-group-heartbeats")

    def close(self) -> None:
        """Call the listener no more, and send nothing more by itself."""
        self._closed = True
        for task in self._tasks:
            task.cancel()

    async def leave(self) -> None:
        """Leave the group, so that others get the partitions at once. Raises what the last try has raised."""
        if not self._has_joined:
            return
        for pause in _PAUSES:
            with contextlib.suppress(kafka.KafkaError, OSError):
                answer = await self._node.ask(CONSUMER_GROUP_HEARTBEAT, self._member.leave())
                if answer.error_code not in COORDINATOR_MOVED:
                    return
            self._node.coordinator_dead()
            await asyncio.sleep(pause)
        await self._node.ask(CONSUMER_GROUP_HEARTBEAT, self._member.leave())

    def stale(self, generation: Generation) -> None:
        """An answer says that the coordinator has a newer epoch. The next heartbeat tells. It is hurried once in an
        epoch: the listener may commit again as soon as it hears of the answer."""
        if generation == self._generation and self._member.is_member:
            self._has_news = True
            if self._stale != generation.id:
                self._stale = generation.id
                self._hurry()

    def doubt(self, generation: Generation) -> None:
        """An answer says that the epoch is stale, or that the member is none any more. The next heartbeat tells."""
        if generation == self._generation and self._member.is_member:
            self._doubted = self._member.epoch
            self._hurry()

    def removed(self, generation: Generation) -> None:
        """An answer says that the member is none any more. The answer for an earlier epoch says nothing about now.

        A static member asks first: only a heartbeat says whether another process has its instance id."""
        if self._member.subscribed.instance_id is not None:
            self.doubt(generation)
        elif generation == self._generation and self._member.is_member:
            self._lose("a commit was refused")
            self._hurry()

    @property
    def _generation(self) -> Generation:
        return Generation(self._member.epoch, self._member.member_id)

    def _hurry(self) -> None:
        """Send the next heartbeat at once, or when the pause after a failure ends."""
        self._is_hurried = True
        self._look_again.set()

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _fail(self, error: Exception) -> None:
        if not self._closed:
            self._on_failure(error)

    # -- heartbeats

    async def _run(self) -> None:
        due = self._loop.time()
        while True:
            now = self._loop.time()
            if now >= due or (self._is_hurried and now >= self._rests_until):
                self._is_hurried = False
                wait = await self._beat()
                if wait is None:
                    return
                due = self._loop.time() + wait
            is_short_of_names = await self._reconcile()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(due, self._loop.time() + _SOON) if is_short_of_names else due):
                    await self._look_again.wait()
            self._look_again.clear()

    async def _beat(self) -> float | None:
        """Send one heartbeat. Returns the seconds until the next one; None if there is none."""
        sent, doubted, has_news = self._member.heartbeat(), self._doubted, self._has_news
        self._has_joined, self._has_news = True, False
        try:
            answer = await self._node.ask(CONSUMER_GROUP_HEARTBEAT, sent)
            then = self._member.answered(sent, answer)
            if then is Then.WAIT:
                self._must_tell |= has_news
                if doubted is not None:
                    self._doubted = None
                    if self._member.epoch == doubted:
                        self._lose("it has refused a request of the current epoch")
                        return 0.0
            else:
                self._has_news |= has_news
            return await self._follow(then, answer.error_code, answer.error_message)
        except LookUpRefused as error:
            self._refused(error.code, None)
        except (kafka.IncompatibleBrokerVersion, UnencodableMessage) as error:
            self._refused(ErrorCode.UNSUPPORTED_VERSION, str(error))
        except (kafka.KafkaError, OSError) as error:
            self._has_news |= has_news
            self._member.unanswered()
            self._node.coordinator_dead()
            return self._again(str(error) or type(error).__name__)
        return None

    async def _follow(self, then: Then, code: int, message: str | None) -> float | None:
        if then is Then.INSTANCE_IN_USE:
            return await self._wait_for_instance()
        self._in_use_until = None
        if then is Then.WAIT:
            self._joined_at = self._joined_at or self._loop.time()
            self._backoff, self._losses = self._retry_backoff, 0
            return self._until_next()
        why = f"{message} (error code {code})"
        if then is Then.RETRY or then is Then.LOOK_UP:
            if then is Then.LOOK_UP:
                self._node.coordinator_dead()
            return self._again(why)
        if then is Then.LOST:
            self._lose(why)
            return self._join_again(why)
        if then is Then.LEAVE:
            await self._is_released()
            return self._join_again(why)
        if then is Then.INSTANCE_FENCED:
            self._fenced()
        else:
            self._refused(code, message)
        return None

    def _until_next(self) -> float:
        """The seconds until the next heartbeat. After a change more may follow, when others have given partitions away,
        and nobody runs these until this member asks. So it asks often then, and less often with time."""
        member = self._member
        if member.epoch != self._told or member.arriving or member.leaving:
            self._quick = _QUICK
        wait = min(member.interval, self._quick if member.target else min(self._quick, _WITHOUT))
        self._quick = min(member.interval, self._quick * _SLOWER)
        return wait

    def _join_again(self, why: str) -> float:
        """Returns the seconds until then."""
        self._losses += 1
        return 0.0 if self._losses == 1 else self._again(why)

    def _again(self, why: str) -> float:
        """Log a failure. Returns the seconds until the next heartbeat."""
        logger.info(
            "A heartbeat in group %s failed: %s; trying again",
            self._group_id,
            why,
            extra={"action": "heartbeat_failed", "group_id": self._group_id},
        )
        backoff, self._backoff = self._backoff, min(_LONGEST_BACKOFF, self._backoff * 2)
        self._rests_until = self._loop.time() + backoff
        return backoff

    def _refused(self, code: int, message: str | None) -> None:
        self._fail(refusal(code, message, self._member.subscribed))

    async def _wait_for_instance(self) -> float | None:
        """A member that has crashed has its instance id until its session expires, so this one tries for longer. It may
        also be this member itself: if its join got no answer, or was fenced."""
        instance_id = str(self._member.subscribed.instance_id)
        if await self._is_released():
            return self._join_again("the coordinator still had this member")
        if self._in_use_until is None:
            seconds = await self._node.session_timeout() + _RELEASED
            self._in_use_until = self._loop.time() + seconds
            logger.warning(
                "Another member of group %s has the group_instance_id %s, or has crashed with it: trying for %.0f s",
                self._group_id,
                instance_id,
                seconds,
                extra={"action": "instance_in_use", "group_id": self._group_id},
            )
        if self._loop.time() < self._in_use_until:
            return _LONGEST_BACKOFF
        self._fail(InstanceInUse(self._group_id, instance_id))
        return None

    async def _is_released(self) -> bool:
        """Leave, as a member that the coordinator has and this one has given up. Returns whether it had it."""
        answer = await self._node.ask(CONSUMER_GROUP_HEARTBEAT, self._member.leave())
        return bool(answer.error_code == ErrorCode.NONE)

    # -- partitions

    async def _reconcile(self) -> bool:
        """Begin what leads from the owned partitions to those that the coordinator wants here. Returns whether the
        names of some are still unknown."""
        if not self._member.is_member or self._closed:
            return False
        self._give_away()
        is_short_of_names = bool(self._unnamed()) and await self._look_up_names()
        if self._member.is_member:  # unless a commit has ended that meanwhile
            self._take_over()
        return is_short_of_names

    def _unnamed(self) -> set[bytes]:
        return {place.topic_id for place in self._member.arriving} - self._names.known.keys()

    async def _look_up_names(self) -> bool:
        """Request the names of topics that are assigned. Returns whether some are still unknown."""
        try:
            async with asyncio.timeout(_NAMES):
                await self._names.look_up(self._unnamed())
        except TimeoutError as error:
            logger.debug("No topic names: %r", error, extra={"action": "no_topic_names"})
        self._names.forget_all_but({place.topic_id for place in self._member.owned | self._member.target})
        return bool(self._unnamed())

    def _take_over(self) -> None:
        """Take the partitions that have come, once all that must leave have left: one of a topic that was recreated has
        the name of the old one."""
        member = self._member
        arriving: dict[Place, TopicPartition] = {}
        if not (self._giving or member.leaving or member.is_unsure):
            arriving = {
                place: TopicPartition(name, place.partition)
                for place in member.arriving
                if (name := self._names.known.get(place.topic_id)) is not None
            }
        # Brokers compute assignments in the background, so the first one is empty most often.
        is_early = not (arriving or self._told) and self._loop.time() < self._joined_at + _FIRST_ASSIGNMENT
        if (arriving or self._must_tell or member.epoch != self._told) and not is_early:
            self._take(arriving)

    def _take(self, arriving: dict[Place, TopicPartition]) -> None:
        member = self._member
        self._told, self._must_tell = member.epoch, False
        self._held |= arriving
        partitions = list(arriving.values())
        if arriving:
            member.take(arriving)
            self._positions.add(partitions)
            self._hurry()
        logger.debug(
            "Assigned %d more partitions in epoch %d of group %s",
            len(partitions),
            member.epoch,
            self._group_id,
            extra={"action": "assigned", "group_id": self._group_id, "count": len(partitions)},
        )
        self._call(lambda: self._listener.assigned(partitions, self._generation))

    def _give_away(self) -> None:
        leaving = self._member.leaving
        if not leaving or self._giving:
            return
        self._giving = {place: self._held.pop(place) for place in leaving}
        self._positions.pause(self._giving.values())
        self._spawn(self._revoke(), "aioparallel-group-revoke")

    async def _revoke(self) -> None:
        giving = self._giving
        try:
            await self._listener.revoked(list(giving.values()))
        except Exception as error:
            self._fail(error)
        finally:
            self._positions.remove(giving.values())
            self._member.drop(giving)
            self._giving = {}
            self._has_news = True
            self._hurry()

    def _lose(self, why: str) -> None:
        lost, self._held = list(self._held.values()), {}
        self._member.lose()
        self._told, self._joined_at = 0, 0.0
        self._doubted = self._stale = None
        self._has_news = self._must_tell = False
        self._positions.remove(lost)
        if self._closed or not (lost or self._giving):
            return
        logger.warning(
            "The coordinator of group %s has removed this member: %s. %d partitions are lost without a commit; joining "
            "again",
            self._group_id,
            why,
            len(lost),
            extra={"action": "lost", "group_id": self._group_id, "count": len(lost)},
        )
        self._call(lambda: self._listener.lost(lost))

    def _fenced(self) -> None:
        self._has_joined = False  # the other process is the member
        self._lose("another process has joined with its group_instance_id")
        error = InstanceFenced(self._group_id, str(self._member.subscribed.instance_id))
        self._call(lambda: self._listener.fenced(error))
        self._fail(error)

    def _call(self, call: Callable[[], None]) -> None:
        if self._closed:
            return
        try:
            call()
        except Exception as error:
            self._fail(error)
