"""What the engine tells those who feed it. Wired in one place, by whoever puts the parts together."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Signals"]


def _nothing() -> None:
    """Nobody listens."""


def _raise(error: BaseException) -> None:
    raise error


class Signals:
    """Plain functions, called in the middle of the engine's work: they note it, or wake somebody, and return at once.

    ``taken``: the countdown of taken records has run out, so there is room to read on; ``succeeded``: that of succeeded
    ones (see :class:`~aioparallel.engine.tally.Tally`); ``idle``: a worker found nothing ready, or the last output was
    acknowledged: this may be the end; ``fatal(error)``: what must end the run.
    """

    __slots__ = ("fatal", "idle", "succeeded", "taken")

    def __init__(self) -> None:
        self.taken: Callable[[], None] = _nothing
        self.succeeded: Callable[[], None] = _nothing
        self.idle: Callable[[], None] = _nothing
        self.fatal: Callable[[BaseException], None] = _raise
