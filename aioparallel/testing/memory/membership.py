"""One member of one group: joins, sends heartbeats, and reports its assignments to a listener."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Callable, Collection
from typing import Final, NamedTuple, TypeVar

from aioparallel.group.client import Generation, RebalanceListener
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ConfigurationError, InstanceFenced
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.assignor import Subscription
from aioparallel.testing.memory.broker import InMemoryBroker
from aioparallel.testing.memory.faults import Request
from aioparallel.testing.memory.groups import Group
from aioparallel.testing.memory.link import RETRY_BACKOFF, Link
from aioparallel.testing.memory.refused import FENCING, RETRIABLE, Refused

__all__ = ["MemberOptions", "Membership"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LATE: Final = 60.0
"""Seconds for which an unanswered join may still be handled."""


class MemberOptions(NamedTuple):
    """The options of a member. Times in seconds."""

    cooperative: bool
    session_timeout: float
    heartbeat_interval: float
    rebalance_timeout: float
    instance_id: str | None = None

    def check(self) -> None:
        """Raise ConfigurationError for options that cannot work."""
        for option in ("session_timeout", "heartbeat_interval", "rebalance_timeout"):
            if not getattr(self, option) > 0:
                raise ConfigurationError(option, getattr(self, option), "seconds, above 0")
        if self.heartbeat_interval >= self.session_timeout:
            allowed = f"below session_timeout ({self.session_timeout:g} s)"
            raise ConfigurationError("heartbeat_interval", self.heartbeat_interval, allowed)


class Membership:
    """A member, run by one coroutine, :meth:`run`, so the listener gets one call at a time.

    ``dropped`` is called with partitions as soon as they must no longer be read, before the listener is.
    """

    def __init__(
        self,
        broker: InMemoryBroker,
        link: Link,
        group_id: str,
        topics: frozenset[str] | re.Pattern[str],
        *,
        options: MemberOptions,
        listener: RebalanceListener,
        dropped: Callable[[Collection[TopicPartition]], None],
    ) -> None:
        self.held: set[TopicPartition] = set()
        """Partitions that are assigned and not being given up."""
        self.member_id: str | None = None
        self.generation: Generation | None = None
        self._broker = broker
        self._link = link
        self._group_id = group_id
        self._options = options
        self._listener = listener
        self._topics = topics
        self._dropped = dropped
        self._joined_for: frozenset[TopicPartition] = frozenset()
        self._waiter: asyncio.Future[None] | None = None
        # While it sends heartbeats: set to the error code if a commit of its own generation is refused.
        self._fenced: asyncio.Future[ErrorCode] | None = None
        self._is_over = False  # another process has the instance id
        self._unanswered_at = -math.inf  # time of the last unanswered join without a member id

    async def run(self) -> None:
        """Be a member until cancelled. Raises NotAuthorized, InstanceFenced, and Refused for other permanent errors."""
        while True:
            try:
                if await self._enter():
                    await self._stay()
            except Refused as refused:
                await self._recover(refused)
            except TimeoutError:
                logger.info(
                    "no answer from the coordinator, retrying", extra={**self._log_fields(), "action": "no_answer"}
                )

    def group_changed(self) -> None:
        """The group's state has changed: check it again, if waiting for that."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fenced(self, generation: Generation, code: ErrorCode) -> None:
        """A commit with ``generation`` was refused with ``code``. Ignored for an older generation, and while the member
        gives up partitions or joins, because it will be refused there as well."""
        if code is ErrorCode.FENCED_INSTANCE_ID:
            if generation.member_id != self.member_id:
                return  # for an earlier member id of this same process
            if self._may_be_itself():
                code = ErrorCode.UNKNOWN_MEMBER_ID
            else:
                self._end()
        is_current = self._is_over or generation == self.generation
        if is_current and self._fenced is not None and not self._fenced.done():
            self._fenced.set_result(code)

    async def leave(self, timeout: float) -> None:
        """Leave the group, unless it is a static member, which returns with the same id. Never raises."""
        member_id = self.member_id
        if member_id is None or self._options.instance_id is not None:
            return
        try:
            await self._link.call(
                Request.LEAVE,
                lambda now: self._broker.coordinate_classic(self._group_id).leave(member_id, now),
                timeout,
            )
        except (TimeoutError, Refused) as exc:
            logger.info(
                "could not leave group %s (%s): the session will expire by itself",
                self._group_id,
                str(exc) or "no answer",
                extra={**self._log_fields(), "action": "leave"},
            )

    def _wanted(self) -> frozenset[TopicPartition]:
        """The existing partitions of the subscription, looked up before each join and after each heartbeat."""
        return self._broker.partitions_of(self._topics)

    # -- entering a generation

    async def _enter(self) -> bool:
        """Join, sync and call the listener. Returns False if partitions were revoked, so that it must join again."""
        wanted, member_id, instance_id = self._wanted(), self.member_id, self._options.instance_id
        owned = frozenset(self.held) if self._options.cooperative else frozenset[TopicPartition]()
        try:
            self.member_id = joined_as = await self._call(
                Request.JOIN,
                lambda group, now: group.join(
                    member_id,
                    Subscription(wanted, owned),
                    session_timeout=self._options.session_timeout,
                    rebalance_timeout=self._options.rebalance_timeout,
                    now=now,
                    instance_id=instance_id,
                ),
            )
        except (Refused, TimeoutError):
            if member_id is None:
                self._unanswered_at = asyncio.get_running_loop().time()
            raise
        generation = await self._until(lambda group: group.joined(joined_as, instance_id))
        await self._call(Request.SYNC, lambda group, now: group.sync(generation, now, instance_id))
        partitions = await self._until(lambda group: group.synced(generation, instance_id))
        self._joined_for = wanted
        return await self._adopt(partitions, generation)

    async def _adopt(self, partitions: frozenset[TopicPartition], generation: Generation) -> bool:
        added, gone = partitions - self.held, self.held - partitions
        self.generation = generation
        self.held |= added
        logger.info(
            "joined generation %d with %d partitions",
            generation.id,
            len(partitions),
            extra={**self._log_fields(), "action": "assigned"},
        )
        # First, even if nothing was added: commits of revoked partitions need the new generation as well.
        self._listener.assigned(sorted(added), generation)
        await self._revoke(gone)
        return not gone

    # -- staying in it

    async def _stay(self) -> None:
        """Send heartbeats until the group rebalances or the wanted partitions change. Raises Refused, also if a commit
        was refused."""
        self._fenced = fenced = asyncio.get_running_loop().create_future()
        try:
            while self._wanted() == self._joined_for:
                await asyncio.wait([fenced], timeout=self._options.heartbeat_interval)
                if fenced.done():  # meanwhile, or during the last heartbeat
                    raise Refused(fenced.result())
                if await self._heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS:
                    break
        finally:
            self._fenced = None
        if not self._options.cooperative:
            await self._revoke(set(self.held))

    async def _heartbeat(self) -> ErrorCode | None:
        """Send a heartbeat. Returns retriable errors; raises those that end the membership."""
        generation = self.generation
        if generation is None:
            return None
        try:
            instance_id = self._options.instance_id
            await self._call(Request.HEARTBEAT, lambda group, now: group.heartbeat(generation, now, instance_id))
        except TimeoutError:
            return ErrorCode.NETWORK_EXCEPTION
        except Refused as refused:
            if refused.code not in RETRIABLE:
                raise
            return refused.code
        return None

    async def _revoke(self, gone: set[TopicPartition]) -> None:
        """Let the listener give up these partitions, with heartbeats in the background.

        Only the listener ends this. As with real clients, a listener that exceeds the rebalance timeout makes the
        coordinator remove the member, and its commits are fenced.
        """
        if not gone:
            return
        self.held -= gone
        self._dropped(gone)
        revoking = asyncio.ensure_future(self._listener.revoked(sorted(gone)))
        beating = asyncio.ensure_future(self._beat())
        try:
            await asyncio.wait({revoking})
        finally:
            revoking.cancel()
            beating.cancel()
            await asyncio.gather(revoking, beating, return_exceptions=True)
        revoking.result()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._options.heartbeat_interval)
            try:
                await self._heartbeat()
            except Refused as refused:
                logger.warning(
                    "removed from the group while giving up partitions: %s",
                    refused.code.name,
                    extra={**self._log_fields(), "action": "fenced"},
                )
                return

    # -- errors

    async def _recover(self, refused: Refused) -> None:
        code = refused.code
        if code is ErrorCode.FENCED_INSTANCE_ID:
            if not self._may_be_itself():
                raise self._end() from None
            code = ErrorCode.UNKNOWN_MEMBER_ID
        if code in FENCING:
            self._lose(code)
        elif refused.code not in RETRIABLE:
            raise self._link.explain(refused) from None
        elif refused.code is not ErrorCode.REBALANCE_IN_PROGRESS:
            await asyncio.sleep(RETRY_BACKOFF)

    def _may_be_itself(self) -> bool:
        """Whether an unanswered join of this process may have fenced it."""
        unanswered_at, self._unanswered_at = self._unanswered_at, -math.inf
        return asyncio.get_running_loop().time() - unanswered_at < _LATE

    def _end(self) -> InstanceFenced:
        """Another process has the instance id: all partitions are lost, and the member does not rejoin."""
        error = InstanceFenced(self._group_id, str(self._options.instance_id))
        if not self._is_over:
            self._is_over = True
            self._lose(ErrorCode.FENCED_INSTANCE_ID)
            self._listener.fenced(error)
        return error

    def _lose(self, code: ErrorCode) -> None:
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = None
        self.generation = None
        gone = sorted(self.held)
        self.held.clear()
        if gone:
            logger.warning(
                "lost %d partitions: %s", len(gone), code.name, extra={**self._log_fields(), "action": "lost"}
            )
            self._dropped(gone)
            self._listener.lost(gone)

    async def _call(self, request: Request, do: Callable[[Group, float], T]) -> T:
        # Long enough for a slow coordinator, and short enough for a retry within the session.
        timeout = max(self._options.heartbeat_interval, self._options.session_timeout / 3)
        return await self._link.call(
            request, lambda now: do(self._broker.coordinate_classic(self._group_id), now), timeout
        )

    async def _until(self, poll: Callable[[Group], T | None]) -> T:
        """Wait until ``poll`` returns a result; it runs after each change of the group."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._broker.is_reachable:
                raise Refused(ErrorCode.NETWORK_EXCEPTION)
            group = self._broker.coordinate_classic(self._group_id)
            self._broker.advance(loop.time())
            answer = poll(group)
            if answer is not None:
                return answer
            self._waiter = loop.create_future()
            deadline = group.next_deadline()
            timer = None if deadline is None else loop.call_at(deadline, self._time_is_up, deadline)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()

    def _time_is_up(self, deadline: float) -> None:
        # Loops run timers early, by up to their clock's resolution. With a clock that only advances while all wait,
        # waiting for the rest would take for ever. So treat the time as the deadline.
        self._broker.advance(deadline)
        self.group_changed()

    def _log_fields(self) -> dict[str, object]:
        return {"group_id": self._group_id, "member_id": self.member_id, "generation": self.generation}
