"""Turns aiokafka's rebalance callbacks into assigned, revoked and lost.

How aiokafka behaves, and what this module does about it:

* It rebalances eagerly: it calls ``on_partitions_revoked`` with all partitions before each join, and
  ``on_partitions_assigned`` with all partitions after it. In between the member has no partitions.
* The argument of ``on_partitions_revoked`` may be an assignment behind, if a pattern subscription changes while the
  callback of the last join runs. So the assigned partitions are tracked here, and the argument is ignored.
* It has no callback for a lost session. When the coordinator no longer knows the member, the heartbeat or the join
  calls ``reset_generation``. The revoked callback follows later, with generation -1. So ``lost`` is triggered in
  ``reset_generation``, immediately.
* It logs exceptions of callbacks and continues. They are stored here, and the next fetch raises them.
* It does not know that a member with a ``group_instance_id`` can be fenced: see ``static_member.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.protocol.commit import OffsetCommitRequest

from aioparallel.clients.aiokafka.internals import Coordinator
from aioparallel.clients.aiokafka.static_member import StaticMember
from aioparallel.group.client import Generation, RebalanceListener
from aioparallel.records.errors import InstanceFenced
from aioparallel.records.record import TopicPartition

__all__ = ["Membership"]

logger = logging.getLogger(__name__)


class Membership:
    """The listener given to aiokafka. Each partition passed to ``assigned`` ends with one ``revoked`` or ``lost``."""

    def __init__(
        self,
        listener: RebalanceListener,
        coordinator: Coordinator,
        *,
        group_id: str,
        park: Callable[[TopicPartition], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._listener = listener
        self._coordinator = coordinator
        self._group_id = group_id
        self._park = park
        self._on_failure = on_failure
        self._held: frozenset[TopicPartition] = frozenset()
        self._revoking = False
        self._closed = False
        self._reset_generation = coordinator.reset_generation
        coordinator.reset_generation = self._generation_reset
        self._instance_id = coordinator._group_instance_id
        self._static: StaticMember | None = None
        if self._instance_id is not None:
            self._static = StaticMember(coordinator, self._instance_id, self._instance_fenced)

    def close(self) -> None:
        self._closed = True

    def on_partitions_assigned(self, assigned: Collection[tuple[str, int]]) -> None:
        """aiokafka's callback. No heartbeats are sent while it runs."""
        partitions = frozenset(TopicPartition(*tp) for tp in assigned)
        for partition in partitions:
            self._park(partition)
        if self._closed:
            return
        self._held = partitions
        generation = Generation(self._coordinator.generation, self._coordinator.member_id)
        logger.debug(
            "Assigned %d partitions in generation %d of group %s",
            len(partitions),
            generation.id,
            self._group_id,
            extra={"action": "assigned", "group_id": self._group_id, "count": len(partitions)},
        )
        try:
            self._listener.assigned(partitions, generation)
        except Exception as error:
            self._on_failure(error)

    async def on_partitions_revoked(self, _revoked: Collection[tuple[str, int]]) -> None:
        """aiokafka's callback. aiokafka rejoins when it returns, and sends heartbeats until then.

        The session may be lost while the listener gives up the partitions. They still end with ``revoked``, which is
        already running. The coordinator refuses its commits, because they carry the old generation.
        """
        if self._closed or not self._held:
            return
        if self._coordinator.generation == OffsetCommitRequest.DEFAULT_GENERATION_ID:
            self._lose()
            return
        partitions, self._held = self._held, frozenset()
        self._revoking = True
        try:
            await self._listener.revoked(partitions)
        except Exception as error:
            self._on_failure(error)
        finally:
            self._revoking = False

    def fenced(self, generation: Generation, *, instance_fenced: bool = False) -> None:
        """A commit with ``generation`` was refused because the member is gone. ``instance_fenced``: because another
        process uses its ``group_instance_id``.

        If this is still aiokafka's current generation, aiokafka is reset now instead of at its next heartbeat. The
        refusal of an older generation says nothing about the current one, which must not be discarded. A join in
        progress is not disturbed: the coordinator may have begun the next generation while its answer is on the way.
        """
        if instance_fenced and self._static is not None:
            self._static.fenced(generation.member_id)
            return
        current = Generation(self._coordinator.generation, self._coordinator.member_id)
        if generation == current and not self._revoking and self._held and not self._closed:
            self._coordinator.reset_generation()

    def _generation_reset(self) -> None:
        """Replaces the coordinator's ``reset_generation``: the session is lost."""
        self._reset_generation()
        if self._held and not self._closed:
            self._lose()

    def _instance_fenced(self) -> None:
        if self._closed:
            return
        partitions, self._held = self._held, frozenset()
        error = InstanceFenced(self._group_id, str(self._instance_id))
        logger.warning(
            "Another process has joined group %s with the group_instance_id %s of this one: %d partitions are lost "
            "without a commit",
            self._group_id,
            self._instance_id,
            len(partitions),
            extra={"action": "instance_fenced", "group_id": self._group_id, "count": len(partitions)},
        )
        try:
            if partitions:
                self._listener.lost(partitions)
            self._listener.fenced(error)
        except Exception as failure:
            self._on_failure(failure)
            return
        self._on_failure(error)

    def _lose(self) -> None:
        partitions, self._held = self._held, frozenset()
        logger.warning(
            "The session in group %s is lost (no heartbeat arrived in time, or the coordinator forgot this member): "
            "%d partitions are lost without a commit; rejoining",
            self._group_id,
            len(partitions),
            extra={"action": "lost", "group_id": self._group_id, "count": len(partitions)},
        )
        try:
            self._listener.lost(partitions)
        except Exception as error:
            self._on_failure(error)


# aiokafka requires an instance of its abstract class, which cannot be a base class here because it is untyped.
ConsumerRebalanceListener.register(Membership)
