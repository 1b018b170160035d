"""How often the group delivers a record, and what this member does in which delivery.

With dead letters, a record runs in ``max_deliveries`` deliveries at most. Its failure in the last of them dead-letters
it. A record that comes in the group's last delivery after that was never seen to fail: members died with it, or
released it. It is dead-lettered at once, without its handler: if this process died as well, the record would be lost.
"""

from __future__ import annotations

from typing import Any, Final

from aioparallel.group.share_client import ShareClient
from aioparallel.records.record import Record

__all__ = ["Deliveries"]

_USUAL: Final = 5
"""Kafka's default of the limit."""


class Deliveries:
    """See the module. The group's limit may change at any time.

    ``max_deliveries``: what the user has set; None: one less than the group's limit. ``has_letters``: whether records
    can be dead-lettered here.
    """

    def __init__(self, client: ShareClient, max_deliveries: int | None, *, has_letters: bool) -> None:
        self._client = client
        self._max_deliveries = max_deliveries
        self.has_letters = has_letters

    @property
    def most(self) -> int:
        """The number of the delivery whose failure is the last, with dead letters."""
        if self._max_deliveries is not None:
            return self._max_deliveries
        return max(1, (self._client.delivery_limit or _USUAL) - 1)

    def is_last(self, record: Record[Any, Any] | None) -> bool:
        """Whether the group delivers a record no more after this delivery, as far as known."""
        limit = self._client.delivery_limit
        if limit is None and self.has_letters:
            limit = self.most
        return limit is not None and record is not None and record.delivery_count >= limit

    def may_fail(self, record: Record[Any, Any]) -> bool:
        """Whether a record that fails is delivered again."""
        return not self.has_letters or not (record.delivery_count >= self.most or self.is_last(record))

    def begins(self, record: Record[Any, Any]) -> bool:
        """Whether a record that has come is begun. Brokers that write dead letters do so for a process that dies."""
        if not self.has_letters or self._client.dead_letter_topic is not None:
            return True
        limit = self._client.delivery_limit or _USUAL
        return record.delivery_count <= self.most or record.delivery_count < limit
