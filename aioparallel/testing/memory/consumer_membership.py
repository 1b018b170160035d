"""One member of one group of the new protocol (KIP-848). Its heartbeats also join and leave, and bring assignments."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection
from typing import Final

from aioparallel.clients.messages.consumer_groups import (
    JOIN,
    LEAVE,
    LEAVE_TO_RETURN,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    with_inline_flags,
)
from aioparallel.group.client import Generation, RebalanceListener
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ClientError, InstanceFenced
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.broker import InMemoryBroker
from aioparallel.testing.memory.consumer_groups import named, numbered
from aioparallel.testing.memory.faults import Request
from aioparallel.testing.memory.link import RETRY_BACKOFF, Link
from aioparallel.testing.memory.membership import MemberOptions
from aioparallel.testing.memory.refused import RETRIABLE, Refused

__all__ = ["ConsumerMembership"]

logger = logging.getLogger(__name__)

_NONE: Final = frozenset[TopicPartition]()
_GONE: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
"""The member has lost its partitions, and joins again."""


class ConsumerMembership:
    """A member, run by one coroutine, :meth:`run`. The listener's ``revoked`` runs in a task of its own, so that
    heartbeats go on; nothing is added before it has returned.

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
        self.member_id = broker.consumer_groups.new_member_id()
        self.generation: Generation | None = None
        """What the listener knows; None: nothing since the member has lost its partitions."""
        self._broker = broker
        self._link = link
        self._group_id = group_id
        self._topics = () if isinstance(topics, re.Pattern) else tuple(sorted(topics))
        self._pattern = with_inline_flags(topics) if isinstance(topics, re.Pattern) else None
        self._options = options
        self._listener = listener
        self._dropped = dropped
        # Long enough for a slow coordinator, and short enough for a retry within the session.
        self._timeout = max(options.heartbeat_interval, options.session_timeout / 3)
        self._epoch = JOIN
        self._has_asked = False  # the coordinator may know it
        self._is_full = True  # the next heartbeat says everything, so that its answer does as well
        self._told = _NONE  # the owned partitions of the last answered heartbeat
        self._assigned = _NONE  # of the last answer
        self._lives = 0  # how often it has lost its partitions: answers of before count no more
        self._doubted: Generation | None = None  # some answer elsewhere says that it is fenced
        self._revoking: asyncio.Task[None] | None = None
        self._owed = _NONE  # what it revokes, while the coordinator waits for that
        self._must_tell = False  # the listener waits for a generation even if it is the same
        self._hurry = asyncio.Event()
        self._over: InstanceFenced | None = None  # another process has the instance id

    async def run(self) -> None:
        """Be a member until cancelled. Raises NotAuthorized, InstanceFenced, ClientError, and what the listener
        raises."""
        try:
            while True:
                self._hurry.clear()
                self._end_revoking()
                if self._over is not None:
                    raise self._over
                try:
                    await self._beat()
                except TimeoutError:
                    self._is_full = True
                    logger.info(
                        "no answer from the coordinator, retrying", extra={**self._log_fields(), "action": "no_answer"}
                    )
                except Refused as refused:
                    await self._recover(refused)
                else:
                    await self._pause(self._options.heartbeat_interval)
        finally:
            if self._revoking is not None:
                self._revoking.cancel()
                await asyncio.gather(self._revoking, return_exceptions=True)

    def group_changed(self) -> None:
        """Nothing: it learns of changes from its heartbeats."""

    def fenced(self, generation: Generation, code: ErrorCode) -> None:
        """A request with ``generation`` was refused with ``code``. Ignored for an older generation."""
        if generation != self.generation:
            return
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self._end()
        elif code in _GONE:
            self._lose(code)
        elif code is ErrorCode.ILLEGAL_GENERATION:
            self._doubted = generation
        self._is_full = True  # a heartbeat with an old epoch must say what it has
        self._hurry.set()

    async def leave(self, timeout: float) -> None:
        """Leave the group; a static member leaves to return. Never raises."""
        if not self._has_asked or self._over is not None:
            return
        epoch = LEAVE if self._options.instance_id is None else LEAVE_TO_RETURN
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self._options.instance_id,
        )
        try:
            await self._send(request, timeout)
        except (TimeoutError, Refused) as error:
            logger.info(
                "could not leave group %s (%s): the session will expire by itself",
                self._group_id,
                str(error) or "no answer",
                extra={**self._log_fields(), "action": "leave"},
            )

    # -- heartbeats

    async def _beat(self) -> None:
        """Send a heartbeat, and do what its answer says. Raises Refused and TimeoutError."""
        life, doubted, owned = self._lives, self._doubted, _NONE.union(self.held, self._owed)
        is_full = self._is_full
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            member_epoch=self._epoch,
            instance_id=self._options.instance_id,
            rebalance_timeout_ms=round(self._options.rebalance_timeout * 1000) if is_full else -1,
            subscribed_topic_names=self._topics if is_full else None,
            subscribed_topic_regex=self._pattern if is_full else None,
            topic_partitions=numbered(self._broker, owned) if is_full or owned != self._told else None,
        )
        self._has_asked, self._is_full = True, False
        try:
            answer = await self._send(request, self._timeout)
        except Refused:
            if life == self._lives:
                raise
            return
        if life != self._lives:
            return
        self._told = owned
        if doubted is not None:
            self._doubted = None
            if doubted.id == answer.member_epoch:  # it is the current one, so only joining again can help
                self._lose(ErrorCode.ILLEGAL_GENERATION)
                self._hurry.set()
                return
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            before, self._assigned = self._assigned, named(self._broker, answer.assignment.topic_partitions)
            # What was taken back before it was added: the coordinator waits until it is told that nobody has it.
            self._is_full |= bool(before - self._assigned - self.held)
        self._reconcile()

    async def _send(self, request: ConsumerGroupHeartbeatRequest, timeout: float) -> ConsumerGroupHeartbeatResponse:
        session = self._options.session_timeout
        return await self._link.call(
            Request.CONSUMER_HEARTBEAT,
            lambda now: self._broker.coordinate_consumer(self._group_id).heartbeat(request, session, now),
            timeout,
        )

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            pass

    # -- what the answers say

    def _reconcile(self) -> None:
        """Take one step from what it has to what it should have."""
        generation = Generation(self._epoch, self.member_id)
        gone = self.held - self._assigned
        added = self._assigned - self.held
        if self._revoking is not None or gone:
            if generation != self.generation:
                self._tell((), generation)
            if self._revoking is None:
                self._revoke(gone)
        elif added or generation != self.generation or self._must_tell:
            self._tell(added, generation)

    def _tell(self, added: Collection[TopicPartition], generation: Generation) -> None:
        self.generation, self._must_tell = generation, False
        self.held.update(added)
        if added:
            logger.info(
                "%d partitions were added in epoch %d",
                len(added),
                generation.id,
                extra={**self._log_fields(), "action": "assigned"},
            )
        self._listener.assigned(sorted(added), generation)
        if added:
            self._hurry.set()  # the coordinator learns at once what it has

    def _revoke(self, gone: set[TopicPartition]) -> None:
        self.held -= gone
        self._owed = frozenset(gone)
        self._dropped(gone)
        self._revoking = asyncio.ensure_future(self._listener.revoked(sorted(gone)))
        self._revoking.add_done_callback(lambda _: self._hurry.set())

    def _end_revoking(self) -> None:
        """If ``revoked`` has returned, the next heartbeat says so. Raises what the listener has raised."""
        if self._revoking is not None and self._revoking.done():
            done, self._revoking = self._revoking, None
            self._owed, self._must_tell = _NONE, True
            done.result()

    # -- errors

    async def _recover(self, refused: Refused) -> None:
        self._is_full = True
        code = refused.code
        if code is ErrorCode.FENCED_INSTANCE_ID:
            raise self._end() from None
        if code is ErrorCode.UNRELEASED_INSTANCE_ID:
            raise ClientError(
                f"another member of group {self._group_id!r} has the group_instance_id {self._options.instance_id!r}; "
                "give each process its own group_instance_id, or stop the other one. If it was killed, wait until its "
                "session has expired"
            ) from None
        if code is ErrorCode.GROUP_ID_NOT_FOUND:
            raise ClientError(
                f"group {self._group_id!r} has members of the classic protocol; stop them, or use "
                "group_protocol='classic'"
            ) from None
        if code in _GONE:
            self._lose(code)
        elif code not in RETRIABLE:
            raise self._link.explain(refused) from None
        await asyncio.sleep(RETRY_BACKOFF)

    def _end(self) -> InstanceFenced:
        """Another process has the instance id: all partitions are lost, and the member does not join again."""
        if self._over is None:
            self._over = InstanceFenced(self._group_id, str(self._options.instance_id))
            self._lose(ErrorCode.FENCED_INSTANCE_ID)
            self._listener.fenced(self._over)
        return self._over

    def _lose(self, code: ErrorCode) -> None:
        """All is lost; the next heartbeat joins again. A running ``revoked`` goes on, and the listener is told."""
        self._lives += 1
        self._epoch, self._is_full, self._doubted = JOIN, True, None
        self.generation, self._assigned, self._told, self._owed = None, _NONE, _NONE, _NONE
        gone = sorted(self.held)
        self.held.clear()
        if gone or self._revoking is not None:
            logger.warning(
                "lost %d partitions: %s", len(gone), code.name, extra={**self._log_fields(), "action": "lost"}
            )
            self._dropped(gone)
            self._listener.lost(gone)

    def _log_fields(self) -> dict[str, object]:
        return {"group_id": self._group_id, "member_id": self.member_id, "generation": self.generation}
