"""Membership in a consumer group of the new protocol (KIP-848): joins, sends heartbeats, joins again, leaves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import aiokafka.errors as kafka

from aioparallel.clients.aiokafka.group_member import GroupMember, Place, Then
from aioparallel.clients.aiokafka.group_node import GroupNode, LookUpRefused
from aioparallel.clients.aiokafka.group_reconciler import GroupReconciler, Positions
from aioparallel.clients.aiokafka.group_refusals import refusal
from aioparallel.clients.aiokafka.topic_names import TopicNames
from aioparallel.clients.messages import UnencodableMessage
from aioparallel.clients.messages.consumer_groups import CONSUMER_GROUP_HEARTBEAT
from aioparallel.group.client import Generation, RebalanceListener
from aioparallel.records.error_codes import RETRIABLE, ErrorCode
from aioparallel.records.errors import InstanceFenced, InstanceInUse

__all__ = ["ConsumerMembership"]

logger = logging.getLogger(__name__)

_TRIED_AGAIN: Final = RETRIABLE | {ErrorCode.UNKNOWN_SERVER_ERROR}
"""Codes after which the member still has to leave."""
_LONGEST_BACKOFF: Final = 1.0
_QUICK: Final = 0.2
"""Seconds until the next heartbeat after a change."""
_SLOWER: Final = 1.2
_WITHOUT: Final = 1.0
"""Most seconds between two heartbeats of a member without partitions."""
_RELEASED: Final = 5.0
"""Seconds after a session's end within which the coordinator removes the member."""
_SOON: Final = 0.5
"""Seconds until the name of a topic is requested again."""


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
        self._node = node
        self._reconciler = GroupReconciler(
            member, names, positions, listener, on_given_away=self._given_away, on_failure=on_failure
        )
        self._retry_backoff = self._backoff = retry_backoff
        self._on_failure = on_failure
        self._group_id = member.subscribed.group_id
        self._doubted: int | None = None  # an epoch
        self._has_news = False  # for the listener, once the next heartbeat is answered
        self._stale: int | None = None  # the last epoch that the coordinator has called stale
        self._quick = _QUICK
        self._answered: tuple[int, frozenset[Place]] = (0, frozenset())  # epoch and target of the last answer
        self._look_again = asyncio.Event()
        self._is_hurried = False
        self._rests_until = 0.0  # after a failure
        self._has_joined = False
        self._losses = 0  # since the last answer without one
        self._in_use_until: float | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Join the group."""
        self._task = asyncio.create_task(self._run(), name="aioparallel-group-heartbeats")
        self._task.add_done_callback(self._ended)

    def give_up(self, why: str) -> None:
        """Report all partitions as lost, and close."""
        self._lose(why)
        self.close()

    def close(self) -> None:
        """Call the listener no more, and send nothing more by itself."""
        self._closed = True
        self._reconciler.close()
        if self._task is not None:
            self._task.cancel()

    async def leave(self) -> None:
        """Leave the group, so that others get the partitions at once. If the coordinator has moved, or does not answer,
        try again until it does."""
        while self._has_joined:
            try:
                answer = await self._node.ask(CONSUMER_GROUP_HEARTBEAT, self._member.leave())
                if answer.error_code not in _TRIED_AGAIN:
                    return
            except kafka.IncompatibleBrokerVersion:
                return
            except (kafka.KafkaError, OSError):
                pass
            self._node.coordinator_dead()
            await asyncio.sleep(self._retry_backoff)

    def stale(self, generation: Generation) -> None:
        """An answer says that the coordinator has a newer epoch. The next heartbeat tells. It is hurried once in an
        epoch: the listener may commit again as soon as it hears of the answer."""
        if generation == self._reconciler.generation and self._member.is_member:
            self._has_news = True
            if self._stale != generation.id:
                self._stale = generation.id
                self._hurry()

    def doubt(self, generation: Generation) -> None:
        """An answer says that the epoch is stale, or that the member is none any more. The next heartbeat tells."""
        if generation == self._reconciler.generation and self._member.is_member:
            self._doubted = self._member.epoch
            self._hurry()

    def removed(self, generation: Generation) -> None:
        """An answer says that the member is none any more. The answer for an earlier epoch says nothing about now.

        A static member asks first: only a heartbeat says whether another process has its instance id."""
        if self._member.subscribed.instance_id is not None:
            self.doubt(generation)
        elif generation == self._reconciler.generation and self._member.is_member:
            self._lose("a commit was refused")
            self._hurry()

    def _given_away(self) -> None:
        self._has_news = True
        self._hurry()

    def _hurry(self) -> None:
        """Send the next heartbeat at once, or when the pause after a failure ends."""
        self._is_hurried = True
        self._look_again.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
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
            is_short_of_names = await self._reconciler.reconcile()
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
                self._reconciler.joined(has_news=has_news)
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
            self._has_joined = False  # and cannot leave either
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
            self._backoff, self._losses = self._retry_backoff, 0
            return self._until_next()
        name = ErrorCode(code).name if code in {*ErrorCode} else "unknown"
        why = f"{message or name} (error code {code})"
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
            self._has_joined = False  # the other process is the member
            fenced = InstanceFenced(self._group_id, str(self._member.subscribed.instance_id))
            self._reconciler.fenced(fenced)
            self._fail(fenced)
        else:
            self._refused(code, message)
        return None

    def _lose(self, why: str) -> None:
        self._doubted = self._stale = None
        self._has_news = False
        self._reconciler.lose(why)

    def _until_next(self) -> float:
        """The seconds until the next heartbeat. After a change more may follow, when others have given partitions away,
        and nobody runs these until this member asks. So it asks often then, and less often with time."""
        member = self._member
        if (member.epoch, member.target) != self._answered:
            self._answered, self._quick = (member.epoch, member.target), _QUICK
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
