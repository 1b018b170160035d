"""The phase of one consumer, and what its user wants.

::

    NEW ── open ──▶ OPEN ── begin ──▶ RUNNING ── stop, fail ──▶ STOPPING ── settled ──▶ SETTLED ── close ──▶ CLOSED

A stop may be requested at any time. If the run has not begun, it begins in the phase STOPPING. ``close`` may follow any
phase. Plain methods; to wait for a change, await one of the events.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import replace

from aioparallel.group.pauses import Pauses
from aioparallel.observe.stats import Paused
from aioparallel.records.errors import ConsumerStateError

__all__ = ["Phase", "RunState"]


class Phase(enum.Enum):
    """The phase of a consumer."""

    NEW = "new"
    OPEN = "open"
    """Connected, or about to be."""
    RUNNING = "running"
    """Records are read and run, unless it is paused."""
    STOPPING = "stopping"
    """Nothing new starts and no partition is accepted. Records in flight are drained."""
    SETTLED = "settled"
    """All assignments are drained, committed and dropped."""
    CLOSED = "closed"
    """The member has left the group, or is about to."""


class RunState:
    """The consumer writes what its user wants. The run writes what has happened."""

    def __init__(self, max_concurrency: int, pauses: Pauses | None = None) -> None:
        self.phase = Phase.NEW
        self.is_paused = False
        """Whether everything is paused."""
        self.pauses = pauses or Pauses()
        """What is paused beside that."""
        self.max_concurrency = max_concurrency
        """How many handlers may run at once."""
        self.failure: BaseException | None = None
        """The first error, if it ended the run."""
        self.ending = asyncio.Event()
        """The run must end, or has ended."""
        self.stopped = asyncio.Event()
        """A stop was requested."""
        self.hurried = asyncio.Event()
        """The stop does not wait for records in flight."""
        self.returned = asyncio.Event()
        """``run()`` is not running."""
        self.returned.set()

    # -- what the user wants ----------------------------------------------------------------------------

    def expect_new(self) -> None:
        """Raises ConsumerStateError unless it is new."""
        self._expect(Phase.NEW, "opened")

    def open(self) -> None:
        """Begin the phase OPEN. Raises ConsumerStateError unless it is new."""
        self.expect_new()
        self.phase = Phase.OPEN

    def expect_open(self) -> None:
        """Raises ConsumerStateError unless it is open."""
        self._expect(Phase.OPEN, "run")

    def begin(self) -> None:
        """Begin the run. Raises ConsumerStateError unless it is open."""
        self.expect_open()
        self.phase = Phase.STOPPING if self.ending.is_set() else Phase.RUNNING
        self.returned.clear()

    def pause(self) -> None:
        """Start no records until :meth:`resume`."""
        self.is_paused = True

    def resume(self) -> None:
        """Start records again."""
        self.is_paused = False

    @property
    def paused(self) -> Paused:
        """All that is paused."""
        return replace(self.pauses.paused, everything=self.is_paused)

    def stop(self, drain: bool) -> None:
        """Request a stop. If any request is without ``drain``, there is no drain."""
        if not drain:
            self.hurried.set()
        self.stopped.set()
        self._end()

    def close(self) -> None:
        """Begin the last phase."""
        self._end()
        self.phase = Phase.CLOSED

    # -- what has happened ------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> bool:
        """End the run with an error. False: it was ending already, so this changes nothing."""
        if self.ending.is_set():
            return False
        self.failure = error
        self._end()
        return True

    def ended_with(self, error: BaseException) -> None:
        """Note the error that ``run()`` raises, unless there was one before."""
        self.failure = self.failure or error
        self._end()

    def settle(self) -> None:
        """Begin the phase SETTLED, unless it is closed."""
        if self.phase is not Phase.CLOSED:
            self.phase = Phase.SETTLED

    def leave_run(self) -> None:
        """Note that ``run()`` returns or raises."""
        self.returned.set()

    # -- questions --------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether partitions are accepted, and records are read and run unless it is paused."""
        return self.phase is Phase.RUNNING

    @property
    def may_start(self) -> bool:
        """Whether records may be fetched and started now."""
        return self.is_running and not self.is_paused

    @property
    def is_settled(self) -> bool:
        """Whether all assignments are drained, committed and dropped."""
        return self.phase in (Phase.SETTLED, Phase.CLOSED)

    def _end(self) -> None:
        self.ending.set()
        if self.phase is Phase.RUNNING:
            self.phase = Phase.STOPPING

    def _expect(self, phase: Phase, verb: str) -> None:
        if self.phase is not phase:
            hint = "use it in `async with consumer:`" if self.phase is Phase.NEW else "make a new one"
            raise ConsumerStateError(f"this consumer is {self.phase.value} and cannot be {verb}; {hint}")
