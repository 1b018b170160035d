"""Who holds the event loop, judged from looks at where its thread stands. Pure: no clock, no thread.

The loop gives a pulse (:mod:`~aioparallel.engine.loop_watch`). While one is overdue somebody looks
again and again, and one handler is to blame only when two looks, one after the other, see the same record in the same
turn of the loop. A busy machine, a stopped process or a garbage collection show in one of three ways, and none of them
makes two such looks: whoever looks is late as well (:meth:`Judge.late`), the thread has waited for a processor
(``starved``), or another record is seen each time.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from aioparallel.records import Record

__all__ = ["LATE", "OVERDUE", "PULSE", "TICK", "Hold", "Judge", "Line", "Look", "Recent", "Worst"]

PULSE: Final = 0.1
"""Seconds between two pulses."""
TICK: Final = 0.05
"""Seconds between two looks."""
OVERDUE: Final = 0.05
"""Seconds by which a pulse is late when the loop may be held."""
LATE: Final = 0.05
"""Seconds by which a look may come late; one that is later says nothing about who was running meanwhile."""
# Seconds between the two looks that it takes, without what the thread has waited for a processor.
_SURE: Final = 0.04
# Seconds, for something that is no handler: it may be short and many.
_SURE_OF_OTHERS: Final = 0.9
# Seconds after which a hold is told although it goes on.
_LONG: Final = 1.0
# Seconds for which a hold is remembered, and how many of them.
_REMEMBERED, _MOST = 60.0, 200
# Seconds of a hold that is a problem; shorter ones are lines in the log: a service is not unfit for them. One of 0.25 s
# may be told as half a pulse less.
_WORTH: Final = 0.2


class Line(NamedTuple):
    """Where one frame stands."""

    file: str
    number: int
    function: str


class Look(NamedTuple):
    """What held the loop's thread at one moment."""

    record: Record[Any, Any] | None
    """Whose handler it was; None: something else."""
    handler: str
    """Its qualified name."""
    stack: tuple[Line, ...]
    """The user's lines, the innermost last."""


class Hold(NamedTuple):
    """The loop was held by one handler, or by something else. ``look``: the last one that saw it."""

    look: Look
    since: float
    until: float

    @property
    def seconds(self) -> float:
        """For how long, at least."""
        return self.until - self.since


class _First(NamedTuple):
    """The first of looks that see the same."""

    look: Look
    since: float
    """When it held the loop already, as far as is known."""
    at: float
    starved: float


class Judge:
    """From one question to its answer. Times are of any one clock; ``starved``: seconds for which the loop's thread has
    waited for a processor, since any one moment."""

    def __init__(self) -> None:
        self._asked = 0.0
        self._first: _First | None = None
        self._anybody_seen = False
        self._held: Hold | None = None
        self._over: list[Hold] = []  # that ended before the answer came

    def asked(self, now: float) -> None:
        """The loop will answer; it is held since then if it does not."""
        self._asked, self._first, self._anybody_seen, self._held = now, None, False, None

    def late(self) -> None:
        """Nobody could look for a while: what was seen before is not seen a second time."""
        self._first, self._anybody_seen = None, True

    def looked(self, look: Look | None, now: float, starved: float) -> None:
        """An answer is overdue, and this was seen; None: nothing holds the loop, it is about to turn."""
        if self._held is not None and (look is None or self._held.look.record is not look.record):
            self._over.append(self._held)
            self._held = None
        first = self._first
        if look is None:
            self._first = None
        elif first is None or first.look.record is not look.record:
            since = self._held.since if self._held else now if self._anybody_seen else self._asked
            self._first = _First(look, since, now, starved)
        elif (now - first.at) - (starved - first.starved) >= (_SURE if look.record else _SURE_OF_OTHERS):
            self._held = Hold(look, first.since, now)
        self._anybody_seen = True

    @property
    def goes_on(self) -> Hold | None:
        """The hold that goes on, if it is a long one."""
        return self._held if self._held is not None and self._held.seconds >= _LONG else None

    @property
    def is_held(self) -> bool:
        """Whether somebody holds the loop, without a doubt."""
        return self._held is not None

    def answered(self, at: float) -> list[Hold]:
        """The loop has turned. All holds since the question, in order."""
        if self._held is not None:
            self._over.append(self._held._replace(until=max(at, self._held.until)))
        over, self._over, self._held, self._first = self._over, [], None, None
        return over


class Worst(NamedTuple):
    """The longest of recent holds of one handler, or of what is none."""

    hold: Hold
    times: int


class Recent:
    """The holds of the last minute. One thread writes, any may read: a tuple is replaced, never changed."""

    def __init__(self) -> None:
        self._ended: tuple[Hold, ...] = ()
        self._going: tuple[Hold, ...] = ()

    def goes_on(self, hold: Hold) -> None:
        """Not ended yet."""
        self._going = (hold,)

    def ended(self, holds: list[Hold]) -> None:
        """All that have ended since the last call."""
        self._ended = (*self._ended, *holds)[-_MOST:]
        self._going = ()

    def forget(self, now: float) -> None:
        """What is older, and the records of it."""
        if self._ended and now - self._ended[0].until > _REMEMBERED:
            self._ended = tuple(hold for hold in self._ended if now - hold.until <= _REMEMBERED)

    def worst(self, now: float) -> list[Worst]:
        """By handler, the longest first."""
        found: dict[str | None, Worst] = {}
        for hold in (*self._ended, *self._going):
            if now - hold.until > _REMEMBERED or hold.seconds < _WORTH:
                continue
            name = hold.look.handler if hold.look.record is not None else None
            before = found.get(name)
            if before is None:
                found[name] = Worst(hold, 1)
            else:
                found[name] = Worst(max(hold, before.hold, key=lambda one: one.seconds), before.times + 1)
        return sorted(found.values(), key=lambda worst: -worst.hold.seconds)
