"""Compares two revisions in one case: pairs of processes, one of each, until the ratios are narrow enough.

Processes of the same code differ by some percent as long as they live, by the addresses of their objects and the order
of hashes. So each pair has new processes and counts as one ratio. Both have the same hash seed and run in random order.
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

from aioparallel.records.errors import AioparallelError
from benchmarks.compare.revisions import PROGRAM, Revision
from benchmarks.contest import Field, Player
from benchmarks.contestants.observing import OBSERVED, Observed
from benchmarks.intervals import Interval, least_rounds, ratio_interval
from benchmarks.machine import moved
from benchmarks.measures import Run
from benchmarks.programs import ROOT, Contestant

__all__ = ["CONFIDENCE", "DECISIVE", "Comparison", "Measured", "PairFailed", "compare", "play_pair", "prepare"]

CONFIDENCE: Final = 0.99
"""Each case has two intervals, and there are many cases: at 95 % one would miss in nearly every comparison."""
TURNS: Final = 4
"""Warm runs of each process of a pair that count."""
EVERY: Final = 4
"""Pairs between two checks of the interval: stopping after any pair would prefer intervals narrow by chance."""

Measured = Literal["seconds", "cpu_per_record"]
DECISIVE: Final[Measured] = "cpu_per_record"
"""Pairs go on until its interval is narrow. The time includes waits for the broker and in handlers."""


class PairFailed(AioparallelError):
    """A run of a comparison had problems; the message names the side and the problems."""


@dataclass(slots=True)
class Comparison:
    """The ratios of the second revision to the first, one for each pair; above 1 the second takes more.

    ``repeated``: turns in which the machine's speed changed and that do not count. ``unquiet``: those that count
    because there were too few quiet ones. ``seconds``: duration of the comparison.
    """

    ratios: dict[Measured, list[float]] = field(default_factory=lambda: {"seconds": [], "cpu_per_record": []})
    medians: dict[Measured, tuple[float, float]] = field(default_factory=dict)
    repeated: int = 0
    unquiet: int = 0
    seconds: float = 0.0

    def interval(self, measured: Measured) -> Interval:
        """The interval at 99 %."""
        return ratio_interval(self.ratios[measured], CONFIDENCE)


async def prepare(place: Field) -> None:
    """Create the other topics of a queue."""
    if place.case.handler == "queue":
        await place.arena.create_topic(f"{place.work.topic}-markers", place.work.partitions)
        await place.arena.create_topic(f"{place.work.topic}__undelivered", 1)


async def compare(place: Field, sides: Sequence[Revision], *, seed: int) -> Comparison:
    """Run as many pairs as an interval needs, then more until it is narrower than ``arena.width``, for at most
    ``arena.seconds``. Raises PairFailed if a run has problems."""
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
"""A run of each side, directly after each other."""


@dataclass(slots=True)
class Pair:
    """The runs of two processes. ``repeated``, ``unquiet``: see :class:`Comparison`."""

    turns: list[Turn] = field(default_factory=list)
    repeated: int = 0
    unquiet: int = 0

    def ratio(self, measured: Measured) -> float:
        """The ratio of the second side to the first: the geometric mean over the turns."""
        logs = [math.log(getattr(after, measured) / getattr(before, measured)) for before, after in self.turns]
        return math.exp(statistics.fmean(logs))


async def play_pair(place: Field, sides: Sequence[Revision], chance: random.Random) -> Pair:
    """A cold run of each side, then :data:`TURNS` turns in which the machine's speed did not change. At most as many
    more are run as replacements; if they do not suffice, other turns count as well."""
    hash_seed = str(chance.randrange(2**32))
    cpu = place.arena.cpu
    players = [
        Player(
            contestant(name, side, hash_seed, place.case.observed if name == "after" else ""),
            place,
            library=str(side.folder),
            cpu=cpu,
        )
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


def contestant(name: str, side: Revision, hash_seed: str, observed: Observed = "") -> Contestant:
    """A revision's library with its program."""
    environment = {"PYTHONPATH": f"{side.folder}:{ROOT}", "PYTHONHASHSEED": hash_seed, OBSERVED: observed}
    # -P: the current folder is not searched, as it may have another aioparallel.
    command = (sys.executable, "-P", "-m", PROGRAM)
    return Contestant(name, side.title, command, environment=environment)
