"""Compares two revisions in one case: pairs of processes, one of each, until the ratios are known well enough.

Processes of the same code differ by some percent for as long as they live (where their objects lie in memory, in which
order their hashes come). So what counts is one ratio for each pair, and each pair has new processes. Both have the same
hash seed, and take turns in random order.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from aioparallel.errors import AioparallelError
from benchmarks.cases import Case
from benchmarks.compare.revisions import Revision
from benchmarks.contest import Field, Player
from benchmarks.intervals import Interval, least_rounds, ratio_interval
from benchmarks.machine import moved
from benchmarks.measures import Run
from benchmarks.programs import ROOT, Contestant

__all__ = ["CONFIDENCE", "Comparison", "Measured", "PairFailed", "compare", "play_pair", "prepare"]

CONFIDENCE: Final = 0.99
"""Of twelve cases, each with two values, one interval in a hundred may miss."""
TURNS: Final = 4
"""Warm runs of each process of a pair."""
EVERY: Final = 4
"""Pairs between two looks at the intervals: an end that could come after any pair would prefer narrow accidents."""

Measured = Literal["seconds", "cpu_per_record"]


class PairFailed(AioparallelError):
    """A run of a comparison was not right; the message says of which side, and what was found."""


@dataclass(slots=True)
class Comparison:
    """The second revision over the first, a ratio for each pair; above 1 it takes more.

    ``repeated``: pairs in which the machine moved. ``seconds``: that all of it took. ``runs``: all that count.
    """

    case: Case
    ratios: dict[Measured, list[float]] = field(default_factory=lambda: {"seconds": [], "cpu_per_record": []})
    medians: dict[Measured, tuple[float, float]] = field(default_factory=dict)
    repeated: int = 0
    seconds: float = 0.0

    def interval(self, measured: Measured) -> Interval:
        """At 99 %."""
        return ratio_interval(self.ratios[measured], CONFIDENCE)

    @property
    def width(self) -> float:
        """Of the narrower of the two intervals: each of them can find a difference."""
        return min(self.interval(measured).width for measured in self.ratios)


async def prepare(place: Field) -> None:
    """Make the topics beside that of a queue."""
    if place.case.handler == "queue":
        await place.arena.create_topic(f"{place.work.topic}-markers", place.work.partitions)
        await place.arena.create_topic(f"{place.work.topic}__undelivered", 1)


async def compare(place: Field, sides: Sequence[Revision], *, seed: int) -> Comparison:
    """At least the pairs that an interval needs, then more until it is narrower than ``arena.width``, for at most
    ``arena.seconds``. Raises PairFailed when a run is not right."""
    arena, chance, found = place.arena, random.Random(seed), Comparison(place.case)
    least, began = least_rounds(CONFIDENCE), time.monotonic()
    runs: tuple[list[Run], list[Run]] = ([], [])
    while True:
        count = len(found.ratios["seconds"])
        spent = time.monotonic() - began
        enough = count >= least and (count - least) % EVERY == 0 and found.width <= arena.width
        if enough or (count >= least and spent > arena.seconds):
            break
        arena.say(f"{place.case.name}: pair {count + 1}")
        pair = await play_pair(place, sides, chance)
        if moved([run.machine for side in pair for run in side if run.machine]) and spent < arena.seconds:
            found.repeated += 1
            continue
        for every, side in zip(runs, pair, strict=True):
            every.extend(side)
        for measured, ratios in found.ratios.items():
            before, after = (statistics.fmean(math.log(getattr(run, measured)) for run in side) for side in pair)
            ratios.append(math.exp(after - before))
    for measured in found.ratios:
        before, after = (statistics.median(getattr(run, measured) for run in side) for side in runs)
        found.medians[measured] = before, after
    found.seconds = time.monotonic() - began
    return found


async def play_pair(place: Field, sides: Sequence[Revision], chance: random.Random) -> tuple[list[Run], list[Run]]:
    """A cold run and some warm ones of each side, by turns."""
    hash_seed = str(chance.randrange(2**32))
    cpu = place.arena.cpu
    players = [
        Player(contestant(name, side, hash_seed), place, library=str(side.folder), cpu=cpu)
        for name, side in zip(("before", "after"), sides, strict=True)
    ]
    runs: tuple[list[Run], list[Run]] = ([], [])
    try:
        await asyncio.gather(*(player.start() for player in players))
        for number in range(1 + TURNS):
            for which in chance.sample((0, 1), 2):
                run = await players[which].run(number)
                if run.problems or run.stopped:
                    raise PairFailed(f"{place.case.name}, {sides[which].title}: {'; '.join(run.problems) or 'stopped'}")
                if number:
                    runs[which].append(run)
    finally:
        await asyncio.gather(*(player.stop() for player in players))
    return runs


def contestant(name: str, side: Revision, hash_seed: str) -> Contestant:
    """The library of a revision, in the program of this checkout."""
    environment = {"PYTHONPATH": f"{side.folder}:{ROOT}", "PYTHONHASHSEED": hash_seed}
    # -P: the folder where somebody calls it is not searched, which may hold another aioparallel.
    command = (sys.executable, "-P", "-m", "benchmarks.contestants.ours")
    return Contestant(name, side.title, command, environment=environment)
