"""aiokafka's rebalance callbacks turned into assigned, revoked and lost.

What aiokafka does, and what is made of it:

* It rebalances eagerly: ``on_partitions_revoked`` with everything before each join, ``on_partitions_assigned`` with
  everything after it. In between the member holds nothing.
* The set given to ``on_partitions_revoked`` can be one assignment old (a subscription by pattern that changes while
  the callback of the last join runs). So what is held is counted here, and the argument is not read.
* It has no callback for a lost session. When the coordinator does not know the member any more, ``reset_generation``
  is called, from the heartbeat or from the join, and the revoked callback comes later, with generation -1. So
  ``reset_generation`` is where ``lost`` comes from, at once.
* It logs exceptions of callbacks and goes on. They are kept here, for the next fetch to raise.
* It does not know that a member with a ``group_instance_id`` can be fenced: see ``static_member.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.protocol.commit import OffsetCommitRequest

from aioparallel.clients.aiokafka.internals import Coordinator
from aioparallel.clients.aiokafka.static_member import StaticMember
from aioparallel.errors import InstanceFenced
from aioparallel.group.client import Generation, RebalanceListener
from aioparallel.records import TopicPartition

__all__ = ["Membership"]

logger = logging.getLogger(__name__)


class Membership:
    """The listener that aiokafka gets. Each partition given to ``assigned`` ends by one ``revoked`` or one ``lost``."""

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
        """Call the listener no more."""
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
        """aiokafka's callback; it joins again when this returns, and sends heartbeats until then.

        The session may be lost while the listener gives the partitions away. They go by ``revoked`` all the same: it
        is under way, and its commits are refused by the coordinator, as they carry the old generation.
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
        """A commit under ``generation`` was refused as of a member that is gone; ``instance_fenced``: as another one
        has its ``group_instance_id``.

        If aiokafka still believes in that very generation, it learns it here instead of at its next heartbeat. An
        older generation says nothing about the newer one: that one must not be thrown away. Nor is a join disturbed:
        the coordinator may be in the next generation already, while its answer to our join is still on the way.
        """
        if instance_fenced and self._static is not None:
            self._static.fenced(generation.member_id)
            return
        current = Generation(self._coordinator.generation, self._coordinator.member_id)
        if generation == current and not self._revoking and self._held and not self._closed:
            self._coordinator.reset_generation()

    def _generation_reset(self) -> None:
        """In the place of the coordinator's ``reset_generation``: the session is lost, whoever found out."""
        self._reset_generation()
        if self._held and not self._closed:
            self._lose()

    def _instance_fenced(self) -> None:
        """Another process has the ``group_instance_id``: all is lost, and nothing joins again."""
        if self._closed:
            return
        partitions, self._held = self._held, frozenset()
        error = InstanceFenced(self._group_id, str(self._instance_id))
        logger.warning(
            "Another process has joined group %s with the group_instance_id %s of this one: %d partitions go without a "
            "commit",
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
            "%d partitions go without a commit; joining again",
            self._group_id,
            len(partitions),
            extra={"action": "lost", "group_id": self._group_id, "count": len(partitions)},
        )
        try:
            self._listener.lost(partitions)
        except Exception as error:
            self._on_failure(error)


# aiokafka asks for an instance of its own abstract class; it has no types, so it cannot be a base here.
ConsumerRebalanceListener.register(Membership)
