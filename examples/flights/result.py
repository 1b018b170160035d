"""What came out: loss, duplicates and key order, computed from what the handler and the service wrote down.

Both write the same events, so both are judged by the same rules, those of :mod:`aioparallel.testing.checkers`. To its
order of keys comes one rule more, because here every record of a key is known: none may begin before the one that
precedes it in its key was completed, in this process or an earlier one. Without it nobody sees an overtaking whose late
record runs only after a kill.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from aioparallel.testing import DeliveryChecker, OrderChecker
from aioparallel.testing.event_log import Event, EventKind, replay
from examples.flights.topic import PartitionOffsets, Place

__all__ = ["Check", "Observed", "Result", "enriched_places", "observe", "predecessors", "show"]


class Check(NamedTuple):
    """One promise, whether it held, and the figures behind it."""

    promise: str
    passed: bool
    figures: str


@dataclass(frozen=True, slots=True)
class Observed:
    """What the logs of one way amount to.

    ``calls`` began; ``records`` were completed, each counted once. ``seconds`` is from the first beginning to the last
    completion, where the events have times.
    """

    calls: int
    records: int
    duplicates: int
    lost: int
    out_of_order: int
    seconds: float

    @property
    def rate(self) -> float:
        """Records (not calls) per second."""
        return self.records / self.seconds if self.seconds else 0.0


def observe(runs: Sequence[Sequence[Event]], keys: Mapping[Place, bytes | None]) -> Observed:
    """Judge what processes, one after the other, did about the produced records ``keys``."""
    order, delivery = OrderChecker(), DeliveryChecker[tuple[int, int]]()
    for place in keys:
        delivery.produced(place)
    before, done = predecessors(keys), set[Place]()
    out_of_order = 0
    for events in runs:
        for event in events:
            replay([event], lambda partition, offset: keys[Place(partition, offset)], order, delivery)
            place = Place(event.partition, event.offset)
            # Back to a completed record, as after a session that timed out: a duplicate, and no violation.
            broken = any(found.rule != "backwards" or place not in done for found in order.violations)
            order.violations.clear()
            overtaking = event.kind is EventKind.BEGAN and place in before and before[place] not in done
            out_of_order += broken or overtaking
            if event.kind is EventKind.ENDED:
                done.add(place)
        order.crashed()
    began = [event.at for events in runs for event in events if event.kind is EventKind.BEGAN]
    ended = [event.at for events in runs for event in events if event.kind is EventKind.ENDED]
    counts = delivery.statistics()
    return Observed(
        calls=len(began),
        records=counts.handled,
        duplicates=counts.duplicates,
        lost=counts.lost,
        out_of_order=out_of_order,
        seconds=(max(ended) - min(began)) / 1e9 if ended else 0.0,
    )


def predecessors(keys: Mapping[Place, bytes | None]) -> dict[Place, Place]:
    """For each record with a key: the one before it in its key, if there is one."""
    last: dict[tuple[int, bytes], Place] = {}
    before: dict[Place, Place] = {}
    for place in sorted(keys):
        if (key := keys[place]) is not None:
            if (previous := last.get((place.partition, key))) is not None:
                before[place] = previous
            last[place.partition, key] = place
    return before


def enriched_places(path: Path) -> Counter[Place]:
    """How many lines of the file of enriched records each record has."""
    with path.open("rb") as lines:
        return Counter(Place(record["partition"], record["offset"]) for record in map(json.loads, lines))


@dataclass(frozen=True, slots=True)
class Result:
    """Everything the demo found out.

    ``handler`` and ``service`` are what each saw of the parallel run; ``lines`` counts the lines of the file of
    enriched records by the record they came from. ``kills`` were made, ``kills_asked`` asked for.
    """

    produced: int
    plain: Observed
    handler: Observed
    service: Observed
    lines: Counter[Place]
    offsets: Sequence[PartitionOffsets]
    kills: int
    kills_asked: int

    @property
    def speed_up(self) -> float:
        """How many times the plain loop's rate."""
        return self.handler.rate / self.plain.rate if self.plain.rate else 0.0

    @property
    def passed(self) -> bool:
        """Whether every check did."""
        return all(check.passed for check in self.checks())

    def checks(self) -> list[Check]:
        """All promises; the order of keys as the handler saw it and as the service did."""
        checks = [self._nothing_lost()]
        for who, seen in ("handler", self.handler), ("service", self.service):
            figures = f"{seen.out_of_order} violations in {seen.calls:,} calls"
            checks.append(Check(f"order of every key, as the {who} saw it", not seen.out_of_order, figures))
        checks.append(self._all_committed())
        if self.kills_asked:
            figures = f"{self.kills} of {self.kills_asked}"
            checks.append(Check("consumer killed on the way", self.kills == self.kills_asked, figures))
        return checks

    def _nothing_lost(self) -> Check:
        """Every produced record: handled to its end, answered by the service, in the file."""
        handler, service, file = self.handler.lost, self.service.lost, self.produced - len(self.lines)
        lost = max(handler, service, file)
        figures = f"{lost} lost of {self.produced:,} (handler {handler}, service {service}, file {file})"
        return Check("no record lost", lost == 0, figures)

    def _all_committed(self) -> Check:
        """Every partition's committed offset stands at its end."""
        behind = [at for at in self.offsets if at.committed != at.end]
        figures = f"{len(self.offsets) - len(behind)} of {len(self.offsets)} partitions at their end"
        if behind:
            figures += ": " + ", ".join(f"{at.partition} at {at.committed} of {at.end}" for at in behind)
        return Check("committed offsets = end offsets", not behind, figures)


def show(result: Result, console: Console) -> None:
    """Print the figures of both ways, and the checks, with words as well as colours."""
    figures = Table("", title="Measured, first to last handler call")
    if result.kills:
        figures.caption = "The seconds include the waiting, after each kill, until the dead consumer's session is over."
    for way in "plain loop", "aioparallel":
        figures.add_column(way, justify="right")
    plain, parallel = result.plain, result.handler
    figures.add_row("records", f"{plain.records:,}", f"{parallel.records:,}")
    figures.add_row("seconds", f"{plain.seconds:.2f}", f"{parallel.seconds:.2f}")
    figures.add_row("records/s", f"{plain.rate:,.0f}", f"{parallel.rate:,.0f}")
    figures.add_row("speed-up", "1", f"[bold]{result.speed_up:.1f}[/bold]")
    figures.add_row("duplicates (handler calls)", f"{plain.duplicates:,}", f"{parallel.duplicates:,}")
    figures.add_row("duplicates (lines of the file)", "", f"{result.lines.total() - len(result.lines):,}")
    checks = Table("check", "result", "figures", title="Checked, from what the handler and the service saw")
    for check in result.checks():
        verdict = "[green]PASS[/green]" if check.passed else "[bold red]FAIL[/bold red]"
        checks.add_row(check.promise, verdict, check.figures)
    console.print(figures, checks)
