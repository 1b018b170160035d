"""Outputs that only a broker refuses, found out when their record was complete already.

The record is never run again: the next one of its key may have run meanwhile. It is put away, or skipped, or ends the
run, as the failure policy says of records whose retries have ended; retry topics are for another run, so they are left
out. A letter that is refused for its size goes once more with less in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from aioparallel.config.policies import FailurePolicy
from aioparallel.delivery.dead_letters import DeadLetters
from aioparallel.delivery.shrinking import is_cut
from aioparallel.engine.schedule.counters import Counters, EndState
from aioparallel.group.sessions import Session
from aioparallel.observe.record_logging import coordinates
from aioparallel.persistence.transactions.pending_outputs import Entry, Waiting
from aioparallel.records.errors import ProduceFailed, RecordStopped
from aioparallel.records.record import Record

__all__ = ["Refusals"]

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 100
"""Records that are put away in one turn of the event loop."""
_OF_OUTPUT: Final = (
    "Mend the cause, or tell the failure policy where such records go: "
    'FailurePolicy(dead_letter="a topic"), or give_up="skip"'
)
_REFUSED: Final = {
    EndState.SUCCEEDED: "what its handler has returned",
    EndState.DEAD_LETTERED: "it in a retry topic, for its size",
}
_OF_LETTER: Final = (
    "It is the record itself, on its way to where the failure policy puts it away: that topic must take whatever the "
    "source holds (as large, and records without a key or a value), from this user"
)


class Refusals:
    """Decides what becomes of them. ``counters``: count their records as succeeded. ``fatal(error)`` ends
    the run."""

    def __init__(
        self,
        waiting: Waiting,
        policy: FailurePolicy,
        dead_letter_sink: DeadLetters | None,
        counters: Counters,
        fatal: Callable[[BaseException], None],
    ) -> None:
        self._waiting = waiting
        self._counters = counters
        self._policy = policy
        self._dead_letter_sink = dead_letter_sink
        self._fatal = fatal
        self.count = 0
        """Records."""

    async def refuse(self, refused: Mapping[Entry, ProduceFailed]) -> None:
        """The transaction they were in is aborted; they go in no other one."""
        by_session: defaultdict[Session, list[Entry]] = defaultdict(list)
        for entry in refused:
            source = entry.record._source
            assert isinstance(source, Session)
            by_session[source].append(entry)
        for session, entries in by_session.items():
            self._waiting.keep_places(session, entries)
        # Nothing is committed meanwhile.
        for number, (entry, failure) in enumerate(refused.items()):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            self._refuse(cast("Session", entry.record._source), entry, failure)

    def _refuse(self, session: Session, entry: Entry, failure: ProduceFailed) -> None:
        if session.dropped:
            return
        if entry.is_letter:
            self._refuse_letter(session, entry, failure)
            return
        self.count += len(entry.records)
        for record in entry.records:
            self._put_away(session, record, failure, EndState.SUCCEEDED)

    def _put_away(self, session: Session, record: Record[Any, Any], failure: ProduceFailed, counted: EndState) -> None:
        """``counted``: as what it has ended so far."""
        if self._policy.dead_letter is not None and self._dead_letter_sink is not None:
            logger.warning(
                "%s: the brokers refuse %s, and it becomes a dead letter: %s",
                record.place,
                _REFUSED[counted],
                failure,
                extra={"action": "output_refused", **coordinates(record)},
            )
            # Until it is put away its offset may not be committed, though it is complete.
            self._waiting.hold(session)
            self._dead_letter_sink.dispose(
                record, failure, None, lambda _record, error: self._put(session, record, counted, error)
            )
        elif self._policy.give_up == "skip":
            self._waiting.forget_place(record)
            self._counters.move(counted, EndState.SKIPPED)
            logger.error(
                "%s: the brokers refuse %s, and it is skipped: %s",
                record.place,
                _REFUSED[counted],
                failure,
                extra={"action": "output_skipped", **coordinates(record)},
            )
        else:
            self._stop(session, record, failure, _OF_OUTPUT)

    def _put(self, session: Session, record: Record[Any, Any], counted: EndState, error: Exception | None) -> None:
        self._waiting.forget_place(record)
        self._waiting.let_go(session)
        if error is not None:
            return  # its session is over
        self._counters.move(counted, EndState.DEAD_LETTERED)

    def _refuse_letter(self, session: Session, entry: Entry, failure: ProduceFailed) -> None:
        """It is larger than the record was, and brokers have limits: once more with less in it."""
        letter, dead_letter_sink = entry.output, self._dead_letter_sink
        less = dead_letter_sink.smaller(letter) if dead_letter_sink is not None and failure.too_large else None
        if less is not None:
            if dead_letter_sink is not None and is_cut(less) and not is_cut(letter):
                dead_letter_sink.cut.note(entry.record, less)
            self._waiting.add_letter(session, entry.record, (less,))
        elif failure.too_large and letter.topic in self._policy.retry_topics:
            self._put_away(session, entry.record, failure, EndState.DEAD_LETTERED)
        else:
            self._stop(session, entry.record, failure, _OF_LETTER)

    def _stop(self, session: Session, record: Record[Any, Any], failure: ProduceFailed, hint: str) -> None:
        self._waiting.hold(session, for_good=True)
        stopped = RecordStopped(
            f"{record.place}: the brokers refuse what was to be produced for it: {failure}. Nothing of its partition "
            f"is committed since the last transaction, so it runs again at the next start. {hint}"
        )
        stopped.__cause__ = failure
        self._fatal(stopped)
