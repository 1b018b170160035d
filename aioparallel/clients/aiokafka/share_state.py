"""What the parts of a member of a share group have in common: its partitions, what it has acquired, and who waits for
that. Synchronous."""

from __future__ import annotations

import logging
from collections.abc import Callable

from aioparallel.clients.aiokafka.share_partitions import SharePartitions
from aioparallel.group.share_client import Acquired

__all__ = ["ShareState"]

logger = logging.getLogger(__name__)


class ShareState:
    """See the module. ``wake()``: lets a waiting fetch return."""

    def __init__(self, group_id: str, member_id: str, wake: Callable[[], None]) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.partitions = SharePartitions()
        self.acquired: list[Acquired] = []
        """What no fetch has returned yet."""
        self.wanted = 0
        """Records that a waiting fetch wants; 0 while none waits."""
        self.lock_seconds: float | None = None
        self.may_renew = True
        self.failure: Exception | None = None
        """Why this member cannot continue."""
        self._wake = wake

    def wanted_of_each(self) -> int:
        """The records to request from each leader."""
        leaders = max(1, len(self.partitions.leaders()))
        return -(-self.wanted // leaders)

    def add(self, acquired: list[Acquired]) -> None:
        if acquired:
            self.acquired += acquired
            self.wanted = 0
            self._wake()

    def take(self, now: float) -> list[Acquired]:
        """What no fetch has returned yet. What is not locked any more is given back: it comes again."""
        found, self.acquired = self.acquired, []
        return [one for one in found if self._is_held(one, now)]

    def _is_held(self, acquired: Acquired, now: float) -> bool:
        until, unreadable = acquired.locked_until, acquired.unreadable
        first = acquired.records[0].offset if acquired.records else unreadable[0].first
        partition = self.partitions.get(acquired.partition)
        # One acquisition is lost as a whole.
        if partition is None or partition.acks.is_held(first, until, now):
            return partition is not None
        partition.acks.give_back([record.offset for record in acquired.records], until)
        for one in unreadable:
            partition.acks.give_back(range(one.first, one.last + 1), until)
        return False

    def fail(self, error: Exception) -> None:
        """The first failure counts: others may follow from it."""
        if self.failure is None:
            self.failure = error
        self.wanted = 0
        self._wake()

    def report(self) -> None:
        """Call the callbacks of all acknowledgements that have ended. They may acknowledge more."""
        ended = self.partitions.ended  # each partition has this list, too
        while ended:
            some, ended[:] = ended[:], ()
            for report, result, locked_until in some:
                try:
                    report(result, locked_until)
                except Exception:
                    logger.exception(
                        "The callback of an acknowledgement failed",
                        extra={"action": "acknowledge_callback_failed", "group_id": self.group_id},
                    )
