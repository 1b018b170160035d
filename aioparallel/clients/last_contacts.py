"""Which brokers answer, and when each kind of request was answered last. Plain; ``now()`` gives the time of any clock.

A broker *owes* an answer from the moment when a request was sent, or could not be sent, until it answers any request. A
failed request that is not repeated is forgotten after a while: a broker that is no longer asked may be well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from aioparallel.observe.stats import BrokerContact
from aioparallel.records import TopicPartition

__all__ = ["LastContacts"]

# Seconds after which a failed request that was not repeated is forgotten.
_FORGOTTEN: Final = 10.0


class _Contact:
    """The contact with one broker."""

    __slots__ = ("answered", "asked", "owes_since", "reason", "under_way")

    def __init__(self) -> None:
        self.answered: float | None = None
        self.asked = 0.0
        self.owes_since: float | None = None
        self.under_way = 0
        self.reason = ""


class LastContacts:
    """The contacts of one client. ``now()``: seconds. ``explain(error)``: says for people why a request failed."""

    def __init__(self, now: Callable[[], float], explain: Callable[[Exception], str] = str) -> None:
        self._now = now
        self._explain = explain
        self._of: dict[object, _Contact] = {}
        self._answered: dict[str, float] = {}
        self._heard: dict[TopicPartition, float] = {}

    @contextlib.contextmanager
    def asking(self, node: object, *kinds: str) -> Iterator[None]:
        """Around a request of these kinds; it is answered when the block ends without an exception."""
        contact = self._of.setdefault(node, _Contact())
        contact.asked = self._now()
        contact.under_way += 1
        if contact.owes_since is None:
            contact.owes_since = contact.asked
        try:
            yield
        except Exception as error:
            contact.under_way -= 1
            contact.asked = self._now()
            contact.reason = self._explain(error) or type(error).__name__
            raise
        except BaseException:  # given up by whoever asked
            contact.under_way -= 1
            if not contact.under_way and not contact.reason:
                contact.owes_since = None
            raise
        contact.under_way -= 1
        self.answered(node, *kinds)

    def answered(self, node: object, *kinds: str) -> None:
        """Something has come from this broker, of these kinds."""
        contact = self._of.setdefault(node, _Contact())
        contact.answered = self._now()
        contact.reason = ""
        contact.owes_since = contact.answered if contact.under_way else None
        self._answered.update(dict.fromkeys(kinds, contact.answered))

    def heard(self, partitions: Collection[TopicPartition]) -> None:
        """The ends of these logs were told."""
        self._heard.update(dict.fromkeys(partitions, self._now()))

    def since_heard(self, partition: TopicPartition) -> float | None:
        """Seconds since the end of its log was told; None: it was not yet."""
        at = self._heard.get(partition)
        return None if at is None else self._now() - at

    def since_answered(self, kind: str) -> float | None:
        """Seconds since a request of this kind was answered, by whomever; None: none was yet."""
        at = self._answered.get(kind)
        return None if at is None else self._now() - at

    def brokers(self, addresses: Mapping[object, str]) -> tuple[BrokerContact, ...]:
        """Those of the cluster, of which these are the ``addresses``, that were asked for anything."""
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
