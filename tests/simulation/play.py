"""One play: everything that goes wrong, and then a time in which nothing does; and what came of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .clocks import one_source_of_chance
from .director import Director
from .looks import look_at_outputs, look_at_what_is_left
from .loop import RecordingLoop
from .plan import GroupProtocol, Plan
from .stage import NODES

__all__ = ["Played", "play"]

_TO_FINISH = 240.0  # virtual seconds that all of it may take once nothing goes wrong any more
_LATEST = 3.5  # virtual seconds that a request may be late
_TO_CLOSE = 40.0  # virtual seconds for a member to end: drain, grace, commit, resources, producer, leaving
_STOP_LOOKING = 20  # violations after which the play has shown enough


@dataclass(frozen=True)
class Played:
    """What came of a seed."""

    seed: int
    violations: tuple[str, ...]
    story: tuple[str, ...]
    """Empty where it was not asked for."""
    seconds: float
    """Virtual."""
    handled: int
    digest: int
    """Of all that was told: the same for the same play."""


def play(seed: int, *, tell: bool = False, eager: bool = False, group_protocol: GroupProtocol = "classic") -> Played:
    """Play the seed, in a loop of its own. Raises nothing for what it finds.

    ``eager``: tasks begin at once, where this Python can do that (3.12).
    """
    plan = Plan(seed, group_protocol)
    loop = RecordingLoop()
    if eager:
        loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009
    gc.collect()
    with _unraisable() as unraisable, _logging(tell) as log, one_source_of_chance(seed, loop.time, plan.pace):
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            stage = Play(plan, loop, log)
            try:
                runner.run(stage.run())
            except Exception as error:
                stage.truth.violated(f"the play itself ended with {type(error).__name__}: {error}")
        gc.collect()
        for found in (*loop.uncaught, *unraisable):
            stage.truth.violated(f"nobody caught: {found}")
    story = (f"seed {seed}:\n{plan.describe()}", *log) if tell else ()
    return Played(
        seed, tuple(stage.truth.violations), story, loop.time(), len(stage.truth.runs), stage.digest & (2**64 - 1)
    )


@contextmanager
def _unraisable() -> Iterator[list[str]]:
    found: list[str] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda it: found.append(f"{it.err_msg}: {it.exc_value!r}")
    try:
        yield found
    finally:
        sys.unraisablehook = before


@contextmanager
def _logging(tell: bool) -> Iterator[list[str]]:
    """The story's lines; with what the package logs among them, if it is to be told."""
    lines: list[str] = []
    logger, asyncio_logger = logging.getLogger("aioparallel"), logging.getLogger("asyncio")
    before = logger.level, logger.propagate, asyncio_logger.level
    handler = _ToStory(lines)
    logger.propagate = False
    logger.setLevel(logging.INFO if tell else logging.CRITICAL + 1)
    asyncio_logger.setLevel(logging.CRITICAL)
    if tell:
        logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
        asyncio_logger.setLevel(before[2])


class _ToStory(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        try:
            now = asyncio.get_running_loop().time()
        except RuntimeError:
            now = 0.0
        self._lines.append(f"{now:10.4f}    log {record.levelname.lower()}: {record.getMessage()}")


class Play(Director):
    """The course of it."""

    async def run(self) -> None:
        """All of it."""
        self._fill()
        for topic in ("out", "dlq"):
            self.broker.create_topic(topic, 3)
        for request, probability in self.plan.faults.items():
            faults = self.plan.faults_of(request)
            for fault in faults:
                self.broker.faults.sometimes(request, probability / len(faults), fault)
        looking = self.loop.create_task(self._look_around(), name="looking")
        for _ in range(self.plan.members):
            self._enter()
        await self._trouble()
        self._heal()
        await self._finish()
        await self._close()
        looking.cancel()
        await asyncio.wait([looking])
        if not looking.cancelled() and (error := looking.exception()) is not None:
            raise error
        look_at_what_is_left(self)
        look_at_outputs(self)

    async def _trouble(self) -> None:
        until = self.loop.time() + self.plan.troubled_for
        while (left := until - self.loop.time()) > 0 and len(self.truth.violations) < _STOP_LOOKING:
            await asyncio.sleep(min(left, self.rng.uniform(0.02, 0.5)))
            self.act()

    def _heal(self) -> None:
        self.is_healed = True
        self.tell(lambda: "everything heals")
        self.broker.faults.heal()
        self.broker.is_coordinator_available = True
        if not self.broker.is_reachable:
            self.broker.come_back()
        for node in range(1, NODES + 1):
            self.broker.start_node(node)
            self.broker.unhang(node)

    async def _finish(self) -> None:
        """Wait until all is handled and committed."""
        # Commits that were late come now, and say less than others that overtook them: that is no loss, but only what
        # ends from now on makes the members say it again.
        self.later(_LATEST, self._ring)
        until = self.loop.time() + _TO_FINISH
        while (left := self._left()) and len(self.truth.violations) < _STOP_LOOKING:
            if self.loop.time() > until:
                seen = "; ".join(member.describe() for member in self.members)
                self.truth.violated(f"stall: {_TO_FINISH:g} s after everything healed, {left}; {seen}")
                return
            if not any(not member.is_leaving for member in self.members):
                self._enter(until_end=False)
            await asyncio.sleep(0.1)

    def _ring(self) -> None:
        """One more record in each partition."""
        self.tell(lambda: "the bell rings")
        for number in range(self.plan.partitions):
            self._append_one(number, self.rng.choice(self.plan.keys))
        self._has_rung = True

    def _left(self) -> str:
        """What is not finished, in words."""
        if not self._has_rung:
            return "the bell"
        if unfinished := self.truth.unfinished():
            return f"not over: { {str(p): offsets[:10] for p, offsets in unfinished.items()} }"
        self._look_at_commits()
        behind = {
            str(p): sorted(offsets - self._complete.get(p, set()))[:10]
            for p, offsets in self.truth.expected.items()
            if offsets - self._complete.get(p, set())
        }
        return f"not committed: {behind}" if behind else ""

    async def _close(self) -> None:
        for member in list(self.members):
            if member.is_leaving:
                continue
            match self.rng.choice(("stop", "stop", "stop", "no drain", "cancel")):
                case "stop":
                    member.stop()
                case "no drain":
                    member.stop(drain=False)
                case "cancel":
                    member.cancel()
        tasks = [member.task for member in self.everybody if not member.task.done()]
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=_TO_CLOSE)
            for task in left:
                self.truth.violated(f"{task.get_name()} did not end within {_TO_CLOSE:g} s: {task.get_stack(limit=3)}")
        # Handlers that ignore their cancellation were left behind; they end by themselves.
        for _ in range(50):
            if not any(self.truth.running.values()):
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(0)

    async def _look_around(self) -> None:
        seen, looks = -1, 0
        while True:
            await asyncio.sleep(self.plan.look_every)
            looks += 1
            if self.truth.events == seen and looks % 10:
                continue
            seen = self.truth.events
            for member in self.members:
                if member.is_open:
                    member.look()
            self._look_at_commits()
