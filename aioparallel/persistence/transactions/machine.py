"""The life of transactions, one after the other, as far as it follows from what the brokers answer. No I/O, no clock.

::

    NEW, DOUBT --InitProducerId--> IDLE --a cut--> SENDING --all acknowledged--> OFFSETS --accepted--> ENDING --> IDLE
      SENDING, OFFSETS: failed, its time is over, or a session has gone --> ABORTING --> IDLE, the outputs are kept
      ENDING, ABORTING: no answer, or one that passes --> the same again, before anything else
      any: its epoch is not taken any more --> DOUBT: InitProducerId with the own id and epoch
      DOUBT, answered: was EndTxn (commit) ever sent? --> VERIFYING: do the stable offsets say what was to be committed?
      DOUBT, and the id is somebody else's --> FENCED

Two things may not be done otherwise. **EndTxn is repeated before anything else is asked**: after an InitProducerId its
repetition is refused though it was committed. And once all offsets were accepted, it is committed and not aborted,
whatever the group does meanwhile: a successor waits for it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

from aioparallel.persistence.transactions.codes import Ask, Meaning, meaning_of, name_of
from aioparallel.persistence.transactions.producer import Epoch, Epochs

__all__ = ["Machine", "Outcome", "Phase"]

PART_OF_TIMEOUT: Final = 0.8
"""The part of the transaction timeout in which its offsets must be accepted. The rest is for ending it."""
_AFTER: Final = 0.002
"""Seconds between two transactions. A batch that comes before the markers of the one before are written waits 20 ms in
the broker (measured); they are, mostly, after 2."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1
"""Seconds before a request is retried. They double each time."""
_UNEXPECTED_PAUSE: Final = 1.0
_READ_PAUSE: Final = 0.05


class Phase(enum.Enum):
    """The phase of a transaction."""

    NEW = "new"
    """There is no epoch yet."""
    IDLE = "idle"
    SENDING = "sending"
    OFFSETS = "offsets"
    ENDING = "ending"
    ABORTING = "aborting"
    DOUBT = "doubt"
    VERIFYING = "verifying"
    FENCED = "fenced"


class Outcome(enum.Enum):
    """The outcome of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    """Its outputs never become visible."""


_ASKS: Final = {
    Phase.NEW: Ask.INITIALIZE,
    Phase.SENDING: Ask.SEND,
    Phase.OFFSETS: Ask.OFFSETS,
    Phase.ENDING: Ask.COMMIT,
    Phase.ABORTING: Ask.ABORT,
    Phase.DOUBT: Ask.INITIALIZE,
    Phase.VERIFYING: Ask.READ,
}
_MAY_ABORT: Final = (Phase.SENDING, Phase.OFFSETS)


class Machine:
    """One producer's transactions. Whoever drives it does what :attr:`ask` says, after :attr:`pause` seconds, and tells
    the answer by the method for it.

    ``timeout``: seconds after which the brokers abort a transaction by themselves.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self.phase = Phase.NEW
        self.epoch: Epoch | None = None
        """Of the transaction that goes on, or the next one. None: a new one is to be asked for."""
        self.outcome: Outcome | None = None
        """The outcome of the last transaction, once it has ended."""
        self.cause = ""
        """Why the last one was aborted or is in doubt. There are few kinds, so they can be counted."""
        self.detail = ""
        """Details of the cause."""
        self.trouble = ""
        """Why the current request is retried; empty if it is not."""
        self.forbidden: tuple[Ask, int] | None = None
        """The request that the cluster refuses for good, and its code. Then there are no more requests."""
        self.pause = 0.0
        self.deadline: float | None = None
        """When the transaction's time for sending is over, by the clock of :meth:`begin`."""
        self._commit_was_sent = False

    def __repr__(self) -> str:
        return f"<Machine {self.phase.value} {self.epoch} {self.why}>"

    @property
    def why(self) -> str:
        """Cause and detail, for people."""
        return f"{self.cause}: {self.detail}" if self.detail else self.cause

    @property
    def ask(self) -> Ask | None:
        """The next request. None: nothing to do before :meth:`begin` or :meth:`restart`."""
        return None if self.forbidden else _ASKS.get(self.phase)

    @property
    def is_doubtful(self) -> bool:
        """Whether the outcome of a transaction is unknown at the moment."""
        return self.phase in (Phase.DOUBT, Phase.VERIFYING)

    @property
    def may_abort(self) -> bool:
        """Whether :meth:`abort` would do something."""
        return self.phase in _MAY_ABORT

    def begin(self, now: float) -> None:
        """Begin a transaction. Call it only when idle."""
        assert self.phase is Phase.IDLE, self.phase
        self.outcome, self.cause, self.detail = None, "", ""
        self._commit_was_sent = False
        self.deadline = now + self._timeout * PART_OF_TIMEOUT
        self._go(Phase.SENDING)

    def restart(self) -> None:
        """Go on with another transactional id, after :attr:`Phase.FENCED`."""
        assert self.phase is Phase.FENCED, self.phase
        self.epoch = None
        self._go(Phase.NEW)

    def abort(self, cause: str, detail: str = "") -> None:
        """Abort the transaction. Does nothing if its offsets are accepted already: then it is committed."""
        if self.phase in _MAY_ABORT:
            self.cause, self.detail = cause, detail
            self._go(Phase.ABORTING)

    def out_of_time(self, now: float, detail: str = "") -> bool:
        """Whether it was aborted now because its time is over. ``detail``: what it has waited for."""
        if self.phase in _MAY_ABORT and self.deadline is not None and now >= self.deadline:
            self.abort(f"not done within {self._timeout * PART_OF_TIMEOUT:g} s", detail)
            return True
        return False

    # -- answers ----------------------------------------------------------------------------------------

    def initialized(self, answer: Epochs) -> None:
        """To ``Ask.INITIALIZE``."""
        match meaning_of(Ask.INITIALIZE, answer.code):
            case Meaning.DONE:
                assert answer.epoch is not None
                self.epoch = answer.epoch
                if self._commit_was_sent:
                    self._go(Phase.VERIFYING)
                else:
                    # What was open is aborted by that.
                    self._end(Outcome.ABORTED if self.phase is Phase.DOUBT else None)
            case Meaning.FENCED if self.epoch is not None:
                self._go(Phase.FENCED)
                self.outcome = None  # where its commit was under way, nobody knows
            case Meaning.FORGOTTEN:
                self.epoch = None  # the next try asks as one who has none
                self._again(answer.code)
            case Meaning.FORBIDDEN:
                self._forbid(Ask.INITIALIZE, answer.code)
            case _:
                self._again(answer.code)

    def sent(self) -> None:
        """To ``Ask.SEND``: all outputs are acknowledged, or there were none."""
        if self.phase is Phase.SENDING:
            self._go(Phase.OFFSETS)

    def broken(self, code: int) -> None:
        """A batch was refused with a code that ends the transaction."""
        if self.phase is not Phase.SENDING:
            return
        match meaning_of(Ask.SEND, code):
            case Meaning.DOUBT:
                self._doubt(Ask.SEND, code)
            case Meaning.FORBIDDEN:
                self._forbid(Ask.SEND, code)
            case _:
                self.abort(f"{Ask.SEND.value}: {name_of(code)}")

    def offsets(self, codes: Iterable[int]) -> None:
        """To ``Ask.OFFSETS``: the codes of all partitions."""
        if self.phase is not Phase.OFFSETS:
            return
        by_meaning = {meaning_of(Ask.OFFSETS, code): code for code in codes}
        for worst in (Meaning.DOUBT, Meaning.FORBIDDEN):
            if (code := by_meaning.get(worst)) is not None:
                (self._doubt if worst is Meaning.DOUBT else self._forbid)(Ask.OFFSETS, code)
                return
        rest = by_meaning.keys() - {Meaning.DONE, Meaning.AGAIN}
        if rest:
            first = min(rest, key=lambda meaning: meaning.value)
            self.abort(f"{Ask.OFFSETS.value}: {name_of(by_meaning[first])}")
        elif (code := by_meaning.get(Meaning.AGAIN)) is not None:
            self._again(code)
        else:
            self._go(Phase.ENDING)

    def asking_to_end(self) -> None:
        """``Ask.COMMIT`` is about to be sent: from now on it may be committed."""
        self._commit_was_sent = True

    def ended(self, answer: Epochs) -> None:
        """To ``Ask.COMMIT`` and ``Ask.ABORT``."""
        if self.phase not in (Phase.ENDING, Phase.ABORTING):
            return
        ask = _ASKS[self.phase]
        match meaning_of(ask, answer.code):
            case Meaning.DONE:
                assert answer.epoch is not None
                self.epoch = answer.epoch
                self._end(Outcome.COMMITTED if ask is Ask.COMMIT else Outcome.ABORTED)
            case Meaning.AGAIN:
                self._again(answer.code)
            case Meaning.FORBIDDEN:
                self._forbid(ask, answer.code)
            case _:
                self._doubt(ask, answer.code)

    def verified(self, is_committed: bool | None) -> None:
        """To ``Ask.READ``: whether the stable offsets are what was to be committed; None: they are not known yet."""
        if self.phase is not Phase.VERIFYING:
            return
        if is_committed is None:
            self.pause = _READ_PAUSE
        else:
            self._end(Outcome.COMMITTED if is_committed else Outcome.ABORTED)

    # -- steps ------------------------------------------------------------------------------------------

    def _go(self, phase: Phase) -> None:
        self.phase = phase
        self.pause = 0.0
        self.trouble = ""

    def _end(self, outcome: Outcome | None) -> None:
        self.outcome = outcome
        self.deadline = None
        self._commit_was_sent = False
        self._go(Phase.IDLE)
        self.pause = _AFTER

    def _again(self, code: int) -> None:
        expected = meaning_of(Ask.COMMIT, code) is Meaning.AGAIN
        longest = _LONGEST_PAUSE if expected else _UNEXPECTED_PAUSE
        self.pause = min(longest, max(_FIRST_PAUSE, self.pause * 2))
        self.trouble = name_of(code)

    def _doubt(self, ask: Ask, code: int) -> None:
        self.cause, self.detail = f"{ask.value}: {name_of(code)}", ""
        self._go(Phase.DOUBT)

    def _forbid(self, ask: Ask, code: int) -> None:
        self.forbidden = ask, code
