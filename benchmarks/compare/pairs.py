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
from benchmarks.compare.revisions import Revision
from benchmarks.contest import Field, Player
from benchmarks.intervals import Interval, least_rounds, ratio_interval
from benchmarks.machine import moved
from benchmarks.measures import Run
from benchmarks.programs import ROOT, Contestant

__all__ = ["CONFIDENCE", "DECISIVE", "Comparison", "Measured", "PairFailed", "compare", "play_pair", "prepare"]

CONFIDENCE: Final = 0.99
"""Each case has two intervals, and there are many cases: of 95 % one would miss in nearly every run."""
TURNS: Final = 4
"""Warm runs of each process of a pair that count."""
EVERY: Final = 4
"""Pairs between two looks at the intervals: an end that could come after any pair would prefer narrow accidents."""

Measured = Literal["seconds", "cpu_per_record"]
DECISIVE: Final[Measured] = "cpu_per_record"
"""Pairs go on until its interval is narrow. Time has the waits for the broker in it, and those of handlers."""


class PairFailed(AioparallelError):
    """A run of a comparison was not right; the message says of which side, and what was found."""


@dataclass(slots=True)
class Comparison:
    """The second revision over the first, a ratio for each pair; above 1 it takes more.

    ``repeated``: turns in which the machine moved, and which do not count. ``unquiet``: those that count all the same,
    because too few quiet ones came. ``seconds``: that all of it took.
    """

    ratios: dict[Measured, list[float]] = field(default_factory=lambda: {"seconds": [], "cpu_per_record": []})
    medians: dict[Measured, tuple[float, float]] = field(default_factory=dict)
    repeated: int = 0
    unquiet: int = 0
    seconds: float = 0.0

    def interval(self, measured: Measured) -> Interval:
        """At 99 %."""
        return ratio_interval(self.ratios[measured], CONFIDENCE)


async def prepare(place: Field) -> None:
    """Make the topics beside that of a queue."""
    if place.case.handler == "queue":
        await place.arena.create_topic(f"{place.work.topic}-markers", place.work.partitions)
        await place.arena.create_topic(f"{place.work.topic}__undelivered", 1)


async def compare(place: Field, sides: Sequence[Revision], *, seed: int) -> Comparison:
    """At least the pairs that an interval needs, then more until it is narrower than ``arena.width``, for at most
    ``arena.seconds``. Raises PairFailed when a run is not right."""
    arena, chance, found = place.arena, random.Random(seed), Comparison()
    least, began = least_rounds(CONFIDENCE), time.monotonic()
    turns: list[Turn] = []
    while True:
        count = len(found.ratios[DECISIVE])
        look = count >= least and (count - least) % EVERY == 0
        enough = look and found.interval(DECISIVE).width <= arena.width
        if enough or (count >= least and time.monotonic() - began > arena.seconds):
            break
        arena.say(f"{place.case.name}: pair {count + 1}")
        pair = await play_pair(place, sides, chance)
        turns += pair.turns
        found.repeated += pair.repeated
        found.unquiet += pair.unquiet
        for measured, ratios in found.ratios.items():
            ratios.append(pair.ratio(measured))
    for measured in found.ratios:
        before, after = (statistics.median(getattr(turn[side], measured) for turn in turns) for side in (0, 1))
        found.medians[measured] = before, after
    found.seconds = time.monotonic() - began
    return found


Turn = tuple[Run, Run]
"""A run of each side, one right after the other."""


@dataclass(slots=True)
class Pair:
    """What two processes did. ``repeated``, ``unquiet``: turns in which the machine moved, see :class:`Comparison`."""

    turns: list[Turn] = field(default_factory=list)
    repeated: int = 0
    unquiet: int = 0

    def ratio(self, measured: Measured) -> float:
        """The second side over the first: the geometric mean of the turns."""
        logs = [math.log(getattr(after, measured) / getattr(before, measured)) for before, after in self.turns]
        return math.exp(statistics.fmean(logs))


async def play_pair(place: Field, sides: Sequence[Revision], chance: random.Random) -> Pair:
    """A cold run of each side, then :data:`TURNS` turns in which the machine did not move, or as many more as that at
    most: then those count in which it did."""
    hash_seed = str(chance.randrange(2**32))
    cpu = place.arena.cpu
    players = [
        Player(contestant(name, side, hash_seed), place, library=str(side.folder), cpu=cpu)
        for name, side in zip(("before", "after"), sides, strict=True)
    ]
    found, spoilt = Pair(), list[Turn]()
    try:
        await asyncio.gather(*(player.start() for player in players))
        for number in range(1 + 2 * TURNS):
            turn = await _turn(place, sides, players, number, chance)
            if number:
                (spoilt if moved([run.machine for run in turn if run.machine]) else found.turns).append(turn)
            if len(found.turns) == TURNS:
                break
    finally:
        await asyncio.gather(*(player.stop() for player in players))
    found.unquiet = max(0, TURNS - len(found.turns))
    found.turns += spoilt[: found.unquiet]
    found.repeated = len(spoilt) - found.unquiet
    return found


async def _turn(
    place: Field, sides: Sequence[Revision], players: Sequence[Player], number: int, chance: random.Random
) -> Turn:
    runs: dict[int, Run] = {}
    for which in chance.sample((0, 1), 2):
        run = runs[which] = await players[which].run(number)
        if run.problems or run.stopped:
            raise PairFailed(f"{place.case.name}, {sides[which].title}: {'; '.join(run.problems) or 'stopped'}")
    return runs[0], runs[1]


def contestant(name: str, side: Revision, hash_seed: str) -> Contestant:
    """The library of a revision, in the program of this checkout."""
    environment = {"PYTHONPATH": f"{side.folder}:{ROOT}", "PYTHONHASHSEED": hash_seed}
    # -P: the folder where somebody calls it is not searched, which may hold another aioparallel.
    command = (sys.executable, "-P", "-m", "benchmarks.contestants.ours")
    return Contestant(name, side.title, command, environment=environment)
