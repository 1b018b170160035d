"""What is seen while the benchmark runs: a bar over all runs on a terminal, a line for each anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from aioparallel.cli.bench.cases import CaseSpec
from aioparallel.cli.bench.settings import Settings

__all__ = ["Board", "Step", "boarding", "steps_of"]

OVERHEAD: Final = 2.0
"""Seconds of a run beside its work: joining the group, closing, checking."""
NOOP_RATE: Final = 150_000
"""Records a second, where handlers return at once: something between the contestants."""
MEASUREMENTS: Final = {"f": 60.0, "g": 10.0, "h": 20.0, "i": 35.0}
QUICK_MEASUREMENTS: Final = {"f": 15.0, "g": 3.0, "h": 20.0, "i": 5.0}
"""Seconds; each is one step."""
TRUSTED: Final = 60.0
"""Seconds of steps after which the time that they took tells more than what was expected."""


class Step(NamedTuple):
    """A run, or a whole measurement. ``part`` is the case's name, or the measurement's letter; ``expected`` seconds."""

    part: str
    expected: float


def steps_of(settings: Settings) -> list[Step]:
    """All of them, in their order."""
    steps = []
    for spec in settings.specs:
        runs = (settings.rounds + 1) * sum(map(settings.takes_part, spec.contestants))
        steps += [Step(spec.name, expected_seconds(spec))] * runs
    measurements = QUICK_MEASUREMENTS if settings.quick else MEASUREMENTS
    return steps + [Step(letter, measurements[letter]) for letter in settings.measured]


def expected_seconds(spec: CaseSpec) -> float:
    """Of one run, roughly."""
    shape = spec.shape
    if not shape.sleeps:
        return OVERHEAD + min(spec.limit, shape.records / NOOP_RATE)
    lanes = {"partition": shape.partitions, "key": shape.keys or shape.records, "unordered": shape.records}
    at_once = min(spec.concurrency, lanes[spec.ordering])
    sleep = sum(shape.sleep) / len(shape.sleep) * 1e-6
    return OVERHEAD + min(spec.limit, shape.records * sleep / at_once)


@dataclass(frozen=True, slots=True)
class Shown:
    """What there is to see: step ``number`` of ``total`` runs now. Seconds ``done`` and ``left`` are estimates."""

    text: str
    number: int
    total: int
    done: float
    left: float


class Board:
    """Hears what runs, and passes on what there is to see."""

    def __init__(
        self, steps: Sequence[Step], show: Callable[[Shown], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._steps = steps
        self._show = show
        self._clock = clock
        self._start = clock()
        self._done = 0  # steps that are over
        self._since = self._start  # the last of them
        self._running = False

    def run(self, spec: CaseSpec, contestant: str, number: int) -> None:
        """A contestant's next run begins."""
        self._begin(f"{spec.name}: {contestant}, {f'warm round {number}' if number else 'cold round'}")

    def measurement(self, letter: str) -> None:
        """A measurement that is no contest begins."""
        self._begin(f"({letter})")

    def say(self, text: str) -> None:
        """Something within the step, or between two."""
        self._tell(text)

    def over(self, part: str) -> None:
        """A case or measurement is over, with all of its steps that were left out."""
        last = max((at for at, step in enumerate(self._steps) if step.part == part), default=-1)
        self._done = max(self._done, last + 1)
        self._since = self._clock()
        self._running = False

    def _begin(self, text: str) -> None:
        if self._running:
            self._done += 1
            self._since = self._clock()
        self._running = True
        self._tell(text)

    def _tell(self, text: str) -> None:
        done = sum(step.expected for step in self._steps[: self._done])
        rest = sum(step.expected for step in self._steps[self._done :])
        after_this = sum(step.expected for step in self._steps[self._done + 1 :])
        trust = min(1.0, done / TRUSTED)
        pace = trust * (self._since - self._start) / done + 1 - trust if done else 1.0
        # A step that takes longer than expected is nearly over, and says nothing yet about those behind it.
        left = max(rest * pace - (self._clock() - self._since), after_this * pace)
        number = min(self._done + self._running, len(self._steps))
        self._show(Shown(text, number, len(self._steps), done, left))


@contextmanager
def boarding(console: Console, steps: Sequence[Step]) -> Iterator[Board]:
    """A board that shows itself on the console."""
    if not console.is_terminal:
        yield Board(steps, lambda shown: console.print(line(shown), markup=False, highlight=False))
        return
    columns = (
        BarColumn(bar_width=24),
        TextColumn("run {task.fields[number]} of {task.fields[runs]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=1.0, number=0, runs=len(steps), left="")

        def show(shown: Shown) -> None:
            progress.update(
                task,
                description=shown.text,
                total=shown.done + shown.left,
                completed=shown.done,
                number=shown.number,
                left=f"about {duration(shown.left)} left",
            )

        yield Board(steps, show)


def line(shown: Shown) -> str:
    """For a log file or a pipe."""
    return f"[{shown.number}/{shown.total}] {shown.text} (about {duration(shown.left)} left)"


def duration(seconds: float) -> str:
    """Minutes, or seconds when there are few."""
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
