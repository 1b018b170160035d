"""Where records go whose retries have ended: the dead-letter topic, a function, or the next retry topic.

While that is not possible the record stays *producing*, so incomplete and uncommitted, and is tried again for ever. One
that is too large for the topic goes with less of it (:mod:`~aioparallel.delivery.shrinking`), as the policy says.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol

from aioparallel.delivery.cut_letters import CutLetters
from aioparallel.delivery.letters import Letter, read_letter, write_letter
from aioparallel.delivery.shrinking import SentLetter, is_cut, sent_letter, smaller
from aioparallel.delivery.waiters import Waiters
from aioparallel.engine.sinks import DeliveryListener, Done, Unfit
from aioparallel.errors import HandlerCancelled, ProduceFailed
from aioparallel.history import failure_of
from aioparallel.left_behind import ended
from aioparallel.policies import DeadLetterFunction, FailurePolicy
from aioparallel.record_logging import coordinates
from aioparallel.records import Outgoing, Record
from aioparallel.steady_clock import steady_time
from aioparallel.user_errors import repr_of

__all__ = ["DeadLetters", "LetterBox"]

logger = logging.getLogger(__name__)

# Seconds between tries to put a record away: doubled each time.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_CANCEL_GRACE = 0.5  # seconds a cancelled dead-letter function has to end
_CALLS = 100  # records that dead-letter functions have, or wait to have again, at once
_TRACEBACK_LENGTH = 4_000  # characters, the end of it


class LetterBox(Protocol):
    """Takes letters for topics, as an :class:`~aioparallel.engine.sinks.OutputSink` takes outputs."""

    def room(self) -> Awaitable[None] | None:
        """None when there is room for more, else what to await before asking again."""

    def deliver(self, record: Record[Any, Any], letter: Sequence[Outgoing], listener: DeliveryListener) -> None:
        """Let it leave, room or not."""


class DeadLetters:
    """Puts records away. A :class:`~aioparallel.engine.sinks.DeadLetterSink`. Made within the running loop."""

    def __init__(
        self,
        policy: FailurePolicy,
        group_id: str,
        outbox: LetterBox | None,
        timeout: float,
        cut: CutLetters | None = None,
    ) -> None:
        self._policy = policy
        self._context = copy_context()
        self._waiters = Waiters()
        self._group_id = group_id
        self._outbox = outbox
        self._timeout = timeout  # seconds one call of a dead-letter function may take
        self._tasks: set[asyncio.Task[None]] = set()
        self._called: set[Record[Any, Any]] = set()  # what a function is to put away
        self._closed = False
        self._timers: dict[Record[Any, Any], asyncio.TimerHandle] = {}
        self.cut = CutLetters() if cut is None else cut
        """Letters that are without a part of their record."""
        self.undelivered: dict[Record[Any, Any], str] = {}
        """Records that could not be put away so far, and why."""

    def room(self) -> Awaitable[None] | None:
        """See :class:`~aioparallel.engine.sinks.DeadLetterSink`."""
        if isinstance(self._policy.dead_letter, str | None):
            return self._outbox.room() if self._outbox is not None else None
        # Retry topics share the bound of the calls then: both are few compared with outputs.
        return None if len(self._called) < _CALLS else self._waiters.enter()

    def dispose(self, record: Record[Any, Any], error: Exception, retry_topic: str | None, done: Done) -> None:
        """See :class:`~aioparallel.engine.sinks.DeadLetterSink`."""
        where = retry_topic or self._policy.dead_letter
        assert where is not None
        if isinstance(where, str) and self._is_own_letter(record):
            # Not within this call: whoever asked still writes down that the record is on its way.
            self._timers[record] = asyncio.get_running_loop().call_later(0, self._leave_in_place, record, where, done)
        elif isinstance(where, str):
            due = None if retry_topic is None else steady_time() + self._policy.retry_topics[retry_topic]
            letter = self._letter(record, where, error, due)
            self._send(record, letter, done if retry_topic is None else _of_handler(done, error), 1)
        else:
            self._called.add(record)
            self._call(_Call(where, record, error, done))

    def _is_own_letter(self, record: Record[Any, Any]) -> bool:
        """Whether the record is a dead letter that this group has written: one more would be read again, without end.
        What a retry topic holds has its history back, and is none."""
        if record._history is not None and record._history.is_restored:
            return False
        letter = read_letter(record)
        return letter is not None and letter.due is None and letter.group == self._group_id

    def _leave_in_place(self, record: Record[Any, Any], where: str, done: Done) -> None:
        self._timers.pop(record, None)
        logger.warning(
            "%s is a dead letter of this group already, and failed again: it is not written to %s once more, and stays "
            "where it is. Leave its topic out of those that are read, or read it with another group",
            record.place,
            where,
            extra={"action": "letter_of_a_letter", **coordinates(record)},
        )
        done(record, None)

    async def close(self) -> None:
        """Try no more: what is not put away stays uncommitted. Functions that run are cancelled, and get a moment."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await ended(tasks, _CANCEL_GRACE)

    # -- a topic ----------------------------------------------------------------------------------------

    def _letter(self, record: Record[Any, Any], topic: str, error: Exception, due: float | None) -> SentLetter:
        last = record.last_failure or failure_of(error, time.time())
        letter = Letter(
            origin=record.origin,
            group=self._group_id,
            attempts=record.attempt,
            first=record.first_failure or last,
            last=last,
            traceback="".join(traceback.format_exception(error))[-_TRACEBACK_LENGTH:],
            due=due,
        )
        headers = write_letter(record.headers, letter)
        return sent_letter(topic, record.raw_value, record.raw_key, headers)

    def _send(self, record: Record[Any, Any], letter: Outgoing, done: Done, tries: int) -> None:
        self._timers.pop(record, None)
        assert self._outbox is not None
        self._outbox.deliver(record, (letter,), _Try(partial(self._sent, letter, done, tries)))

    def _sent(
        self, letter: Outgoing, done: Done, tries: int, record: Record[Any, Any], error: Exception | None
    ) -> None:
        is_too_large = isinstance(error, ProduceFailed) and error.too_large and record._source.current
        if is_too_large and (less := self.smaller(letter)) is not None:
            # Not within this call: a long way of steps would be as many frames.
            self._timers[record] = asyncio.get_running_loop().call_later(0, self._send, record, less, done, tries)
            return
        if is_too_large and error is not None and self._goes_on(letter):
            self.undelivered.pop(record, None)
            _log_unfit(record, letter.topic, error)
            done(record, Unfit(error))
            return
        if error is None and is_cut(letter):
            self.cut.note(record, letter)
        if self._is_over(record, letter.topic, done, tries, error):
            return
        if isinstance(letter, SentLetter) and letter.whole is not None:
            letter = letter.whole  # who lets the topic take larger ones may have mended it by then
        # If the session goes meanwhile, the next try says so: a letter too many, at its next owner's as well.
        self._timers[record] = asyncio.get_running_loop().call_later(
            _pause(tries), self._send, record, letter, done, tries + 1
        )

    def smaller(self, letter: Outgoing) -> SentLetter | None:
        """With less in it, after it was refused for its size; None: it cannot be smaller. What goes to a retry topic is
        handled from there, so all of the record stays in it."""
        is_whole = letter.topic in self._policy.retry_topics
        return smaller(letter, "hold" if is_whole else self._policy.dead_letter_too_large)

    def _goes_on(self, letter: Outgoing) -> bool:
        """Whether the record is for what follows the retry topics, when one of these does not take it for its size."""
        return letter.topic in self._policy.retry_topics and self._policy.dead_letter_too_large != "hold"

    # -- a function -------------------------------------------------------------------------------------

    # Each try is a task, and what comes next is up to nobody within it: the function may cancel its own task, or raise
    # the CancelledError of something else, and its record would have nobody any more.
    def _call(self, call: _Call) -> None:
        self._timers.pop(call.record, None)
        task = asyncio.get_running_loop().create_task(
            call.run(self._timeout), name="aioparallel-dead-letter", context=self._context.copy()
        )
        self._tasks.add(task)
        task.add_done_callback(partial(self._tried, call))

    def _tried(self, call: _Call, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        failure = call.failure_in(task)
        if failure is not None and self._closed:
            return
        if self._is_over(call.record, f"the function {call.name}", call.done, call.tries, failure):
            self._called.discard(call.record)
            if self._called:
                self._waiters.wake(1)
            else:
                self._waiters.wake_all()  # who was woken before may be gone without having come
            return
        self._timers[call.record] = asyncio.get_running_loop().call_later(_pause(call.tries), self._call, call)

    # -- both -------------------------------------------------------------------------------------------

    def _is_over(self, record: Record[Any, Any], where: str, done: Done, tries: int, error: Exception | None) -> bool:
        """Whether the record is put away, or nobody waits for it any more."""
        if error is None or not record._source.current:
            self.undelivered.pop(record, None)
            done(record, error)
            return True
        self.undelivered[record] = f"{where}: {failure_of(error, 0).message}"
        logger.log(
            logging.ERROR if tries in (1, 10) or tries % 100 == 0 else logging.DEBUG,
            "%s offset %d cannot be put away (try %d): %s: %s; it stays uncommitted, its key waits, and it is tried "
            "again",
            record.topic_partition,
            record.offset,
            tries,
            where,
            repr_of(error),
            extra={"action": "dead_letter_failed", **coordinates(record)},
        )
        return False


def _of_handler(done: Done, error: Exception) -> Done:
    """What follows the retry topics is told what the handler has failed with."""

    def told(record: Record[Any, Any], outcome: Exception | None) -> None:
        done(record, Unfit(error) if isinstance(outcome, Unfit) else outcome)

    return told


def _log_unfit(record: Record[Any, Any], topic: str, error: Exception) -> None:
    logger.warning(
        "%s: it is too large for the retry topic %s with the headers that it gets there, so it goes at once to what "
        "follows the retry topics: %s",
        record.place,
        topic,
        error,
        extra={"action": "retry_topic_too_small", **coordinates(record)},
    )


class _Call:
    """A record that a function is to put away, try by try."""

    __slots__ = ("_error", "_function", "_has_returned", "done", "name", "record", "tries")

    def __init__(self, function: DeadLetterFunction, record: Record[Any, Any], error: Exception, done: Done) -> None:
        self._function = function
        self._error = error
        self._has_returned = False
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self.record = record
        self.done = done
        self.tries = 0

    async def run(self, timeout: float) -> None:
        """One try."""
        self.tries += 1
        async with asyncio.timeout(timeout):
            await self._function(self.record, self._error)
            self._has_returned = True  # whatever it did to its task

    def failure_in(self, task: asyncio.Task[None]) -> Exception | None:
        """What the try has failed with that this task was; None when the record is put away."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self._has_returned or error is None:
            return None
        if isinstance(error, Exception):
            return error
        if isinstance(error, asyncio.CancelledError):
            return HandlerCancelled()
        return RuntimeError(f"it raised {type(error).__name__}")


class _Try:
    """Receives the result of one attempt to send a dead letter."""

    __slots__ = ("_done",)

    def __init__(self, done: Done) -> None:
        self._done = done

    def delivered(self, records: Sequence[Record[Any, Any]]) -> None:
        for record in records:
            self._done(record, None)

    def undelivered(self, record: Record[Any, Any], error: Exception) -> None:
        self._done(record, error)


def _pause(tries: int) -> float:
    return float(min(_FIRST_PAUSE * 2 ** min(tries - 1, 10), _LONGEST_PAUSE))
