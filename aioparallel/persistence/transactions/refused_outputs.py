"""Handles outputs that a broker refuses after their record is complete.

The record does not run again, because the next record of its key may have run already. It is dead-lettered, skipped, or
stops the run, as the failure policy defines for records without retries left. Retry topics lead to another run, so they
are not used. A dead letter that is too large is sent again with less content.
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
from aioparallel.group.assignment import Assignment
from aioparallel.observe.record_logging import coordinates
from aioparallel.persistence.transactions.pending_outputs import Entry, Waiting
from aioparallel.records.errors import ProduceFailed, RecordStopped
from aioparallel.records.record import Record

__all__ = ["Refusals"]

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 100
"""Records that are handled in one turn of the event loop."""
_OF_OUTPUT: Final = (
    "Fix the cause, or let the failure policy handle such records: "
    'FailurePolicy(dead_letter="a topic"), or give_up="skip"'
)
_REFUSED: Final = {
    EndState.SUCCEEDED: "an output of its handler",
    EndState.DEAD_LETTERED: "it in a retry topic, because of its size",
}
_OF_LETTER: Final = (
    "It is the record itself, on its way to a dead-letter or retry topic: that topic must accept every record of the "
    "source (as large, and without a key or a value), from this user"
)


class Refusals:
    """Handles refused outputs. ``counters`` have counted their records as succeeded. ``fatal(error)`` ends the run."""

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
        """Records whose outputs were refused."""

    async def refuse(self, refused: Mapping[Entry, ProduceFailed]) -> None:
        """Handle these entries. Their transaction is aborted, and no other transaction sends them."""
        by_assignment: defaultdict[Assignment, list[Entry]] = defaultdict(list)
        for entry in refused:
            source = entry.record._source
            assert isinstance(source, Assignment)
            by_assignment[source].append(entry)
        for assignment, entries in by_assignment.items():
            self._waiting.keep_places(assignment, entries)
        # Nothing is committed while this runs.
        for number, (entry, failure) in enumerate(refused.items()):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            self._refuse(cast("Assignment", entry.record._source), entry, failure)

    def _refuse(self, assignment: Assignment, entry: Entry, failure: ProduceFailed) -> None:
        if assignment.dropped:
            return
        if entry.is_letter:
            self._refuse_letter(assignment, entry, failure)
            return
        self.count += len(entry.records)
        for record in entry.records:
            self._give_up(assignment, record, failure, EndState.SUCCEEDED)

    def _give_up(
        self, assignment: Assignment, record: Record[Any, Any], failure: ProduceFailed, counted: EndState
    ) -> None:
        """Apply the failure policy to a record. ``counted``: the end state it is counted as so far."""
        if self._policy.dead_letter is not None and self._dead_letter_sink is not None:
            logger.warning(
                "%s: the brokers refuse %s, and it is dead-lettered: %s",
                record.place,
                _REFUSED[counted],
                failure,
                extra={"action": "output_refused", **coordinates(record)},
            )
            # The record is complete, but its offset may not be committed before its dead letter is accepted.
            self._waiting.hold(assignment)
            self._dead_letter_sink.dispose(
                record, failure, None, lambda _record, error: self._put(assignment, record, counted, error)
            )
        elif self._policy.give_up == "skip":
            self._waiting.forget_place(record)
            self._counters.move(assignment, counted, EndState.SKIPPED)
            logger.error(
                "%s: the brokers refuse %s, and it is skipped: %s",
                record.place,
                _REFUSED[counted],
                failure,
                extra={"action": "output_skipped", **coordinates(record)},
            )
        else:
            self._stop(assignment, record, failure, _OF_OUTPUT)

    def _put(
        self, assignment: Assignment, record: Record[Any, Any], counted: EndState, error: Exception | None
    ) -> None:
        self._waiting.forget_place(record)
        self._waiting.let_go(assignment)
        if error is not None:
            return  # its assignment has ended
        self._counters.move(assignment, counted, EndState.DEAD_LETTERED)

    def _refuse_letter(self, assignment: Assignment, entry: Entry, failure: ProduceFailed) -> None:
        """Send a dead letter that is too large for the broker again, with less content. Its headers make it larger than
        the record."""
        letter, dead_letter_sink = entry.output, self._dead_letter_sink
        less = dead_letter_sink.smaller(letter) if dead_letter_sink is not None and failure.too_large else None
        if less is not None:
            if dead_letter_sink is not None and not is_cut(letter):
                dead_letter_sink.cut.note(entry.record, less)
            self._waiting.add_letter(assignment, entry.record, less)
        elif failure.too_large and letter.topic in self._policy.retry_topics:
            self._give_up(assignment, entry.record, failure, EndState.DEAD_LETTERED)
        else:
            self._stop(assignment, entry.record, failure, _OF_LETTER)

    def _stop(self, assignment: Assignment, record: Record[Any, Any], failure: ProduceFailed, hint: str) -> None:
        self._waiting.hold(assignment, for_good=True)
        stopped = RecordStopped(
            f"{record.place}: the brokers refuse an output of it: {failure}. Nothing of its partition is committed "
            f"since the last transaction, so it runs again at the next start. {hint}"
        )
        stopped.__cause__ = failure
        self._fatal(stopped)
