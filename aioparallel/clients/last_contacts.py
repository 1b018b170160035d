"""Records which brokers answer, and when each kind of request was last answered. Synchronous, on any clock.

A broker *owes* an answer from the time when a request was sent, or could not be sent, until it answers any request. A
failed request that is not repeated is forgotten after a while, because the broker may be healthy by then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from aioparallel.observe.stats import BrokerContact
from aioparallel.records.record import TopicPartition

__all__ = ["LastContacts"]

_FORGOTTEN: Final = 10.0
"""Seconds before a failed request that is not repeated is forgotten."""


@dataclass(slots=True)
class _Contact:
    answered: float | None = None
    asked: float = 0.0
    owes_since: float | None = None
    under_way: int = 0
    reason: str = ""


class LastContacts:
    """The contacts of one client. ``now()``: seconds. ``explain(error)``: the reason of a failed request."""

    def __init__(self, now: Callable[[], float], explain: Callable[[Exception], str] = str) -> None:
        self._now = now
        self._explain = explain
        self._of: dict[object, _Contact] = {}
        self._answered: dict[str, float] = {}
        self._ends_received: dict[TopicPartition, float] = {}

    @contextlib.contextmanager
    def asking(self, node: object, *kinds: str) -> Iterator[None]:
        """Wraps a request of these kinds, which is answered if the block raises nothing."""
        contact = self._of.setdefault(node, _Contact())
        contact.asked = self._now()
        contact.under_way += 1
        if contact.owes_since is None:
            contact.owes_since = contact.asked
        try:
            yield
        except BaseException as error:
            contact.under_way -= 1
            if isinstance(error, Exception):
                contact.asked = self._now()
                contact.reason = self._explain(error) or type(error).__name__
            elif not contact.under_way and not contact.reason:
                contact.owes_since = None  # cancelled
            raise
        contact.under_way -= 1
        self.answered(node, *kinds)

    def answered(self, node: object, *kinds: str) -> None:
        contact = self._of.setdefault(node, _Contact())
        contact.answered = self._now()
        contact.reason = ""
        contact.owes_since = contact.answered if contact.under_way else None
        self._answered.update(dict.fromkeys(kinds, contact.answered))

    def end_received(self, partitions: Collection[TopicPartition]) -> None:
        self._ends_received.update(dict.fromkeys(partitions, self._now()))

    def since_end_received(self, partition: TopicPartition) -> float | None:
        """Seconds since the end of the log was received; None before the first time."""
        at = self._ends_received.get(partition)
        return None if at is None else self._now() - at

    def since_answered(self, kind: str) -> float | None:
        """Seconds since any broker answered a request of this kind; None before the first time."""
        at = self._answered.get(kind)
        return None if at is None else self._now() - at

    def brokers(self, addresses: Mapping[object, str]) -> tuple[BrokerContact, ...]:
        """The contacts with those brokers of the cluster that were sent a request. ``addresses``: of all its
        brokers."""
        for node in self._of.keys() - addresses.keys():
            if not self._of[node].under_way:
                del self._of[node]
        now = self._now()
        return tuple(
            BrokerContact(
                broker=node if isinstance(node, int) else None,
                address=address,
                answered=None if contact.answered is None else now - contact.answered,
                owes=_owes(contact, now),
                reason=contact.reason,
            )
            for node, address in addresses.items()
            if (contact := self._of.get(node)) is not None
        )


def _owes(contact: _Contact, now: float) -> float | None:
    if contact.owes_since is None or (not contact.under_way and now - contact.asked > _FORGOTTEN):
        return None
    return now - contact.owes_since
