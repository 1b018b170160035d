"""The state machine of transactions, driven by the brokers' answers. No I/O, no clock.

::

    NEW, DOUBT --InitProducerId--> IDLE --a batch--> SENDING --acknowledged--> OFFSETS --accepted--> ENDING --> IDLE
      SENDING, OFFSETS: failed, timed out, or a partition is lost --> ABORTING --> IDLE, the outputs are kept
      ENDING, ABORTING: no answer, or a temporary error --> the same request again
      any phase: the epoch is refused --> DOUBT: InitProducerId with the current id and epoch
      DOUBT, answered, if EndTxn (commit) was sent --> VERIFYING: are the stable offsets those of the transaction?
      DOUBT, and another producer uses the transactional id --> FENCED

Two rules. **EndTxn is repeated before any other request**: after an InitProducerId, a repeated EndTxn is refused even
if the first one was carried out. And once all offsets are accepted, the transaction is committed and not aborted,
whatever the group does meanwhile, because the next owner of a partition waits for its end.
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
"""Seconds between two transactions. A batch that arrives before the markers of the previous transaction are written
waits 20 ms in the broker (measured). Most markers are written after 2 ms."""
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
    """The transactions of one producer. The caller sends the request :attr:`ask` after :attr:`pause` seconds and
    passes the answer to its method.

    ``timeout``: seconds after which the brokers abort a transaction by themselves.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self.phase = Phase.NEW
        self.epoch: Epoch | None = None
        """The epoch of the current or the next transaction; None: a new one is requested."""
        self.outcome: Outcome | None = None
        """The outcome of the last transaction; None: it has not ended, or its outcome is unknown."""
        self.cause = ""
        """Why the last transaction was aborted or is in doubt. There are few causes, so they can be counted."""
        self.detail = ""
        """Details of the cause."""
        self.trouble = ""
        """Why the current request is retried; empty if it is not."""
        self.forbidden: tuple[Ask, int] | None = None
        """The request that the cluster refuses permanently, and its code. No more requests follow."""
        self.pause = 0.0
        self.deadline: float | None = None
        """When the time for sending ends, on the clock of :meth:`begin`."""
        self._commit_was_sent = False

    def __repr__(self) -> str:
        return f"<Machine {self.phase.value} {self.epoch} {self.why}>"

    @property
    def why(self) -> str:
        """Cause and detail in one text."""
        return f"{self.cause}: {self.detail}" if self.detail else self.cause

    @property
    def ask(self) -> Ask | None:
        """The next request. None: nothing to do before :meth:`begin` or :meth:`restart`."""
        return None if self.forbidden else _ASKS.get(self.phase)

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
        """Abort the transaction. Does nothing if its offsets are accepted: then it is committed."""
        if self.phase in _MAY_ABORT:
            self.cause, self.detail = cause, detail
            self._go(Phase.ABORTING)

    def out_of_time(self, now: float, detail: str = "") -> bool:
        """Abort the transaction if its time is over. Returns whether it was aborted. ``detail``: what it waited for."""
        if self.phase in _MAY_ABORT and self.deadline is not None and now >= self.deadline:
            self.abort(f"not done within {self._timeout * PART_OF_TIMEOUT:g} s", detail)
            return True
        return False

    # -- answers ----------------------------------------------------------------------------------------

    def initialized(self, answer: Epochs) -> None:
        """The answer to ``Ask.INITIALIZE``."""
        match meaning_of(Ask.INITIALIZE, answer.code):
            case Meaning.DONE:
                assert answer.epoch is not None
                self.epoch = answer.epoch
                if self._commit_was_sent:
                    self._go(Phase.VERIFYING)
                else:
                    # This has aborted an open transaction.
                    self._end(Outcome.ABORTED if self.phase is Phase.DOUBT else None)
            case Meaning.FENCED if self.epoch is not None:
                self._go(Phase.FENCED)
                self.outcome = None  # unknown if a commit was sent
            case Meaning.FORGOTTEN:
                self.epoch = None  # the next request is without an epoch
                self._again(answer.code)
            case Meaning.FORBIDDEN:
                self._forbid(Ask.INITIALIZE, answer.code)
            case _:
                self._again(answer.code)

    def sent(self) -> None:
        """The answer to ``Ask.SEND``: all outputs are acknowledged, or there were none."""
        if self.phase is Phase.SENDING:
            self._go(Phase.OFFSETS)

    def broken(self, code: int) -> None:
        """A batch of outputs was refused with a code that ends the transaction."""
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
        """The answer to ``Ask.OFFSETS``: the codes of all partitions."""
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
        """``Ask.COMMIT`` is about to be sent, so the transaction may be committed from now on."""
        self._commit_was_sent = True

    def ended(self, answer: Epochs) -> None:
        """The answer to ``Ask.COMMIT`` or ``Ask.ABORT``."""
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
        """The answer to ``Ask.READ``: whether the stable offsets are those of the transaction; None: not known yet."""
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
