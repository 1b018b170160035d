"""The nouns of the benchmark: work, contestants, cases, runs and what came of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

__all__ = ["Case", "Contestant", "CreateTopic", "Entry", "Run", "Spread", "Work"]

CreateTopic = Callable[[str, int], Awaitable[None]]
"""Makes a topic of that name with so many partitions."""


@dataclass(frozen=True, slots=True)
class Work:
    """What each contestant of a case does; written as ``work.json`` for its process.

    ``plan``: folder with a file for each partition, see :mod:`aioparallel.cli.bench.workload`.
    ``sleeps``: whether the handler sleeps as the plan says, or returns at once.
    ``limit``: seconds after the first handler call (or after the start, before it) when a run that has not ended is
    stopped and reported as far as it came.
    """

    bootstrap_servers: str
    topic: str
    partitions: int
    records: int
    ordering: Literal["key", "partition", "unordered"]
    concurrency: int
    sleeps: bool
    plan: str
    limit: float

    def write(self, path: Path) -> None:
        """Write it for a contestant."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Work:
        """What :meth:`write` wrote."""
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to do the work: a program that speaks the protocol of ``wire.py``.

    ``keeps_key_order``: what it promises, and so what is checked of it (with ``ordering`` "key").
    ``command``: the program; the path of ``work.json`` is put behind it.
    """

    name: str
    title: str
    command: tuple[str, ...]
    keeps_key_order: bool
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One pass of one contestant over the topic.

    ``seconds``: from the first handler call to the end of the last handler. ``whole_seconds``: the same from the
    start of the consumer (it joins its group). ``cpu_seconds``: user and system time of the whole process in
    ``seconds``: its start, the joining of the group and the closing would weigh on short runs. ``peak_memory``: bytes,
    the process's highest resident size so far.
    ``problems``: what the checks of order, completeness and commits found; such a run counts for nothing.
    ``stopped``: it was stopped at the work's limit, with ``ended`` records behind it.
    """

    round: int
    seconds: float
    whole_seconds: float
    ended: int
    cpu_seconds: float
    peak_memory: int
    stopped: bool = False
    problems: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.ended / self.seconds if self.seconds else 0.0

    @property
    def cpu_per_record(self) -> float:
        """Seconds of CPU a record."""
        return self.cpu_seconds / self.ended if self.ended else 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the lowest and the highest value."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(slots=True)
class Entry:
    """All runs of one contestant in one case. Round 0 is the cold one, the others follow in the same process.

    ``missing``: why there is none, in words for people (no Java, an installation failed).
    """

    contestant: str
    title: str
    runs: list[Run] = field(default_factory=list)
    missing: str | None = None

    @property
    def cold(self) -> Run | None:
        """The first run of the process, if it is good."""
        return next((run for run in self.runs if run.round == 0 and not run.problems), None)

    @property
    def warm(self) -> list[Run]:
        """The good ones of the later runs."""
        return [run for run in self.runs if run.round > 0 and not run.problems]

    @property
    def rate(self) -> Spread | None:
        """Records a second of the warm runs."""
        return Spread.of([run.rate for run in self.warm]) if self.warm else None

    @property
    def seconds(self) -> Spread | None:
        """Seconds of the warm runs."""
        return Spread.of([run.seconds for run in self.warm]) if self.warm else None

    @property
    def cpu_per_record(self) -> Spread | None:
        """Seconds of CPU a record, of the warm runs."""
        return Spread.of([run.cpu_per_record for run in self.warm]) if self.warm else None


@dataclass(slots=True)
class Case:
    """One row of the benchmark: the same work for several contestants, or a measurement of another kind.

    ``group``: the letter of the case in docs/performance.md, ``a`` to ``i``. ``name`` is unique, e.g. ``b-key-20``.
    ``bound``: the least seconds the work can take, max(longest lane, all work / concurrency); None for no-op handlers.
    ``figures``: what is measured beside or instead of runs, by name (a name says its unit: ``encode_ms``).
    """

    group: str
    name: str
    title: str
    records: int = 0
    concurrency: int = 0
    bound: float | None = None
    entries: list[Entry] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def entry(self, contestant: str) -> Entry | None:
        """The runs of one contestant."""
        return next((entry for entry in self.entries if entry.contestant == contestant), None)
