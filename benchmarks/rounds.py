"""Plays cases in rounds: each contestant once a round, in random order, until the ratios are narrow enough."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from benchmarks.cases import Case
from benchmarks.contest import Arena, Field, Player
from benchmarks.machine import moved
from benchmarks.measures import OURS, Entry, Measure, NotMeasured, Result, cpu_over, over_bound, rate_over

__all__ = ["play"]


async def play(cases: Sequence[Case], arena: Arena) -> list[Result]:
    """One cold round (0), then warm ones in the same processes; each round plays all cases.

    After ``arena.rounds`` warm rounds more follow, for at most ``arena.seconds`` a case: of all contestants to replace
    rounds in which the machine's speed changed, then of contestants whose watched ratio is wider than ``arena.width``.
    Cancelling it ends all processes.
    """
    async with AsyncExitStack() as stack:
        fields = [await stack.enter_async_context(Field.of(case, arena)) for case in cases]
        game = _Game(fields, arena)
        try:
            await game.play()
        finally:
            await asyncio.gather(*(seat.player.stop() for seat in game.seats))
        return [place.result for place in fields]


@dataclass(slots=True, eq=False)
class _Seat:
    """A contestant in one case. ``left``: rounds that it may still run; None for any number."""

    place: Field
    player: Player
    entry: Entry
    left: int | None = None

    @property
    def plays(self) -> bool:
        """Whether it takes part. A process that has ended does not: a new one would be cold."""
        return not self.player.ended and self.left != 0


@dataclass(frozen=True, slots=True)
class _Watched:
    """A ratio that should become narrow, and the seats that it needs."""

    measure: Measure
    result: Result
    seats: Sequence[_Seat]

    def is_wide(self, width: float, results: Mapping[str, Result]) -> bool:
        """Whether more rounds are needed and can make it narrower."""
        try:
            return all(seat.plays for seat in self.seats) and self.measure(self.result, results).width > width
        except NotMeasured:
            return False


@dataclass(slots=True)
class _Game:
    fields: Sequence[Field]
    arena: Arena
    seats: list[_Seat] = field(default_factory=list)
    results: dict[str, Result] = field(init=False)
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.arena.seed)
        self.results = {place.case.name: place.result for place in self.fields}
        for place in self.fields:
            for name in place.case.contestants:
                found = self.arena.contestants.get(name, "it was not asked for")
                if isinstance(found, str):
                    place.result.entries.append(Entry(name, name, missing=found))
                    continue
                entry = Entry(name, found.title)
                place.result.entries.append(entry)
                self.seats.append(_Seat(place, Player(found, place), entry))

    async def play(self) -> None:
        """Play all rounds."""
        await self._round(0, [seat for seat in self.seats if seat.plays])
        for seat in self.seats:
            if seat.entry.cold is None or seat.entry.cold.stopped:
                seat.left = 1
        quiet = 0
        for number in range(1, self.arena.rounds + 1):
            quiet += await self._round(number, [seat for seat in self.seats if seat.plays])
        number, end = self.arena.rounds, time.monotonic() + self.arena.seconds * len(self.fields)
        while time.monotonic() < end and (seats := self._needed(quiet)):
            number += 1
            quiet += await self._round(number, seats)
        self._count()

    def _needed(self, quiet: int) -> list[_Seat]:
        """All seats while there are too few quiet rounds; then the seats of ratios that are too wide."""
        seats = [seat for seat in self.seats if seat.plays]
        if quiet < self.arena.rounds:
            return seats
        wide = [one for one in self._watched() if one.is_wide(self.arena.width, self.results)]
        return [seat for seat in seats if any(seat in one.seats for one in wide)]

    def _watched(self) -> Iterator[_Watched]:
        leaders = {place.case.together: place for place in reversed(self.fields)}
        for place in self.fields:
            case, ours = place.case, self._seats(place, OURS)
            others = [name for name in (case.bounded_by, "ceiling") if name in case.contestants]
            for name in others:
                yield _Watched(rate_over(name), place.result, ours + self._seats(place, name))
            if not others and place.result.bound:
                yield _Watched(over_bound(), place.result, ours)
            leader = leaders[case.together]
            if case.together and leader is not place:
                yield _Watched(cpu_over(leader.case.name), place.result, ours + self._seats(leader, OURS))

    def _seats(self, place: Field, name: str) -> list[_Seat]:
        return [seat for seat in self.seats if seat.place is place and seat.entry.contestant == name]

    async def _round(self, number: int, seats: Sequence[_Seat]) -> bool:
        """Run each seat once. Returns False if the machine's speed changed and the round must be repeated."""
        order = self.random.sample(seats, len(seats))
        for at, seat in enumerate(order, 1):
            what = f"warm round {number}" if number else "cold round"
            self.arena.say(f"{seat.place.case.name}: {seat.entry.contestant}, {what} ({at} of {len(order)})")
            seat.entry.runs.append(await seat.player.run(number))
        runs = [seat.entry.runs[-1] for seat in order]
        if not number or not moved([run.machine for run in runs if run.machine]):
            for seat in order:
                if number and seat.left:
                    seat.left -= 1
            return True
        for seat in order:
            seat.entry.runs[-1] = replace(seat.entry.runs[-1], repeated=True)
        return False

    def _count(self) -> None:
        """Count the rounds. If too few were quiet, all count, and the result says so."""
        for place in self.fields:
            result = place.result
            rounds = {run.round: run.repeated for entry in result.entries for run in entry.runs if run.round}
            unquiet = sum(rounds.values())
            if unquiet and len(rounds) - unquiet < self.arena.rounds:
                for entry in result.entries:
                    entry.runs = [replace(run, repeated=False) for run in entry.runs]
                result.unquiet, unquiet = unquiet, 0
            result.rounds, result.repeated = len(rounds) - unquiet, unquiet
