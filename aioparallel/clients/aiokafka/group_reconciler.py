"""From the partitions that a member of the new group protocol (KIP-848) has to those that the coordinator wants it to
have.

What must go is given away first, in a coroutine of its own, as that may take long: everything that is done with the
other partitions continues meanwhile. Then the member takes what has come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final, Protocol

from aioparallel.clients.aiokafka.group_member import GroupMember, Place
from aioparallel.clients.aiokafka.topic_names import TopicNames
from aioparallel.group.client import Generation, RebalanceListener
from aioparallel.records.errors import InstanceFenced
from aioparallel.records.record import TopicPartition
from aioparallel.records.wording import partitions_text

__all__ = ["GroupReconciler", "Positions"]

logger = logging.getLogger(__name__)

_NAMES: Final = 3.0
"""Timeout of a request for the names of topics, in seconds."""
_FIRST_ASSIGNMENT: Final = 2.0
"""Seconds to wait for partitions before a new member counts as one that has none."""


class Positions(Protocol):
    """What is fetched."""

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """These are assigned; nothing is fetched of them yet."""

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch nothing more of these."""

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        """Forget these."""


class GroupReconciler:
    """See the module. It calls the listener. ``on_given_away()``: the coordinator must be told at once.
    ``on_failure(error)``: the listener has raised it."""

    def __init__(
        self,
        member: GroupMember,
        names: TopicNames,
        positions: Positions,
        listener: RebalanceListener,
        *,
        on_given_away: Callable[[], None],
        on_failure: Callable[[Exception], object],
    ) -> None:
        self._member = member
        self._names = names
        self._positions = positions
        self._listener = listener
        self._on_given_away = on_given_away
        self._on_failure = on_failure
        self._group_id = member.subscribed.group_id
        self._held: dict[Place, TopicPartition] = {}  # owned, and not being given away
        self._giving: dict[Place, TopicPartition] = {}
        self._told = 0  # the epoch that the listener knows
        self._must_tell = False
        self._joined_at: float | None = None
        self._revoking: asyncio.Task[None] | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Call the listener no more."""
        self._closed = True
        if self._revoking is not None:
            self._revoking.cancel()

    @property
    def generation(self) -> Generation:
        """The current one."""
        return Generation(self._member.epoch, self._member.member_id)

    def joined(self, *, has_news: bool) -> None:
        """The coordinator has answered. ``has_news``: the listener must be told, even of the same epoch."""
        self._must_tell |= has_news
        if self._joined_at is None:
            self._joined_at = self._loop.time()

    async def reconcile(self) -> bool:
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
        joined_at = self._loop.time() if self._joined_at is None else self._joined_at
        is_early = not (arriving or self._told) and self._loop.time() < joined_at + _FIRST_ASSIGNMENT
        if (arriving or self._must_tell or member.epoch != self._told) and not is_early:
            self._take(arriving)

    def _take(self, arriving: dict[Place, TopicPartition]) -> None:
        member = self._member
        if not self._told:
            logger.info(
                'Joined group %s with group_protocol="consumer", in epoch %d',
                self._group_id,
                member.epoch,
                extra={"action": "consumer_protocol", "group_id": self._group_id, "epoch": member.epoch},
            )
        self._told, self._must_tell = member.epoch, False
        self._held |= arriving
        partitions = list(arriving.values())
        if arriving:
            member.take(arriving)
            self._positions.add(partitions)
        logger.log(
            logging.INFO if arriving else logging.DEBUG,
            "Group %s assigns %s to this member, in epoch %d",
            self._group_id,
            partitions_text(partitions) if arriving else "no more partitions",
            member.epoch,
            extra={"action": "assigned", "group_id": self._group_id, "count": len(partitions)},
        )
        self._call(lambda: self._listener.assigned(partitions, self.generation))

    def _give_away(self) -> None:
        leaving = self._member.leaving
        if not leaving or self._giving:
            return
        self._giving = {place: self._held.pop(place) for place in leaving}
        self._positions.pause(self._giving.values())
        logger.info(
            "Group %s takes %s from this member, in epoch %d",
            self._group_id,
            partitions_text(self._giving.values()),
            self._member.epoch,
            extra={"action": "giving_away", "group_id": self._group_id, "count": len(self._giving)},
        )
        self._revoking = asyncio.create_task(self._revoke(), name="aioparallel-group-revoke")

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
            if not self._closed:
                self._on_given_away()

    def lose(self, why: str) -> None:
        """All partitions are gone. The next heartbeat joins again."""
        lost, self._held = list(self._held.values()), {}
        self._member.lose()
        is_news = bool(lost or (self._giving and self._told))
        self._told, self._joined_at, self._must_tell = 0, None, False
        self._positions.remove(lost)
        if self._closed or not is_news:
            return
        logger.warning(
            "This member is no longer in group %s: %s. %d partitions are lost without a commit; joining again",
            self._group_id,
            why,
            len(lost),
            extra={"action": "lost", "group_id": self._group_id, "count": len(lost)},
        )
        self._call(lambda: self._listener.lost(lost))

    def fenced(self, error: InstanceFenced) -> None:
        """Another process is the static member now."""
        self.lose("another process has joined with its group_instance_id")
        self._call(lambda: self._listener.fenced(error))

    def _fail(self, error: Exception) -> None:
        if not self._closed:
            self._on_failure(error)

    def _call(self, call: Callable[[], None]) -> None:
        if self._closed:
            return
        try:
            call()
        except Exception as error:
            self._fail(error)
