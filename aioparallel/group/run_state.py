"""How far one consumer's life has come, and what is wanted of it: one object that everybody asks.

::

    NEW ── open ──▶ OPEN ── begin ──▶ RUNNING ── stop, fail ──▶ STOPPING ── settled ──▶ SETTLED ── close ──▶ CLOSED

A stop may be wished at any time; before the run has begun it makes it begin as STOPPING. ``close`` comes from every
phase. Plain methods; who wants to wait awaits one of the events.
"""

from __future__ import annotations

import asyncio
import enum

from aioparallel.errors import ConsumerStateError

__all__ = ["Phase", "RunState"]


class Phase(enum.Enum):
    """How far it has come."""

    NEW = "new"
    OPEN = "open"
    """Connected, or about to be."""
    RUNNING = "running"
    """Records are read and run, unless it is paused."""
    STOPPING = "stopping"
    """Nothing new starts and no partition is taken; what is in flight is drained."""
    SETTLED = "settled"
    """Drained, committed, dropped: nothing is held any more."""
    CLOSED = "closed"
    """The group is left, or about to be."""


class RunState:
    """Written by the consumer (what its user wants) and by the run of its group (what has become of it)."""

    def __init__(self) -> None:
        self.phase = Phase.NEW
        self.is_paused = False
        self.failure: BaseException | None = None
        """What ended the run, when that was no stop. Whatever comes first counts."""
        self.ending = asyncio.Event()
        """It is to end, or has."""
        self.stopped = asyncio.Event()
        """It is to end because somebody has asked for that."""
        self.hurried = asyncio.Event()
        """It is not to wait for what is in flight."""
        self.returned = asyncio.Event()
        """No call of ``run()`` is under way."""
        self.returned.set()

    # -- what is wanted ---------------------------------------------------------------------------------

    def expect_new(self) -> None:
        """Raises ConsumerStateError unless it is new."""
        self._expect(Phase.NEW, "opened")

    def open(self) -> None:
        """Raises ConsumerStateError unless it is new."""
        self.expect_new()
        self.phase = Phase.OPEN

    def expect_open(self) -> None:
        """Raises ConsumerStateError unless it could begin to run now."""
        self._expect(Phase.OPEN, "run")

    def begin(self) -> None:
        """``run()`` was called. Raises ConsumerStateError unless it is open."""
        self.expect_open()
        self.phase = Phase.STOPPING if self.ending.is_set() else Phase.RUNNING
        self.returned.clear()

    def pause(self) -> None:
        """Nothing starts until :meth:`resume`."""
        self.is_paused = True

    def resume(self) -> None:
        """What is not stopped goes on."""
        self.is_paused = False

    def stop(self, drain: bool) -> None:
        """It is to end. Once somebody wants no drain, there is none."""
        if not drain:
            self.hurried.set()
        self.stopped.set()
        self._end()

    def close(self) -> None:
        """The last phase."""
        self._end()
        self.phase = Phase.CLOSED

    # -- what has become of it --------------------------------------------------------------------------

    def fail(self, error: BaseException) -> bool:
        """It cannot go on, or was cancelled. False when it was ending already: then this changes nothing."""
        if self.ending.is_set():
            return False
        self.failure = error
        self._end()
        return True

    def ended_with(self, error: BaseException) -> None:
        """What ``run()`` raises, whatever was wanted before."""
        self.failure = self.failure or error
        self._end()

    def settle(self) -> None:
        """Nothing is held any more."""
        if self.phase is not Phase.CLOSED:
            self.phase = Phase.SETTLED

    def leave_run(self) -> None:
        """``run()`` returns, or raises."""
        self.returned.set()

    # -- questions --------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether partitions are taken, and records read and run unless it is paused."""
        return self.phase is Phase.RUNNING

    @property
    def may_start(self) -> bool:
        """Whether records may be fetched and started now."""
        return self.is_running and not self.is_paused

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing left to drain, commit and drop."""
        return self.phase in (Phase.SETTLED, Phase.CLOSED)

    def _end(self) -> None:
        self.ending.set()
        if self.phase is Phase.RUNNING:
            self.phase = Phase.STOPPING

    def _expect(self, phase: Phase, verb: str) -> None:
        if self.phase is not phase:
            hint = "use it in `async with consumer:`" if self.phase is Phase.NEW else "make a new one"
            raise ConsumerStateError(f"this consumer is {self.phase.value} and cannot be {verb}; {hint}")
