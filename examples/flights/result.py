"""Results: loss, duplicates and key order, computed from the events that the handler and the service logged.

Both logs are judged by the rules of :mod:`aioparallel.testing.checkers`. One rule is added for the order of keys, as
every record of a key is known here: a record may begin only after the one before it in its key was completed, in this
process or an earlier one. Without this rule an overtaken record that runs only after a kill would not be noticed.
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
    """One promise, whether it was kept, and its figures."""

    promise: str
    passed: bool
    figures: str


@dataclass(frozen=True, slots=True)
class Observed:
    """The summary of the logs of one way.

    ``calls`` began; ``records`` were completed, each counted once. ``seconds``: from the first beginning to the last
    completion, if the events have times.
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
    """Judge the events of processes that ran one after the other. ``keys``: the produced records."""
    order, delivery = OrderChecker(), DeliveryChecker[tuple[int, int]]()
    for place in keys:
        delivery.produced(place)
    before, done = predecessors(keys), set[Place]()
    out_of_order = 0
    for events in runs:
        for event in events:
            replay([event], lambda partition, offset: keys[Place(partition, offset)], order, delivery)
            place = Place(event.partition, event.offset)
            # Repeating a completed record, as after a session timeout, is a duplicate and not a violation.
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
    """For each record with a key: the one before it in its key, if any."""
    last: dict[tuple[int, bytes], Place] = {}
    before: dict[Place, Place] = {}
    for place in sorted(keys):
        if (key := keys[place]) is not None:
            if (previous := last.get((place.partition, key))) is not None:
                before[place] = previous
            last[place.partition, key] = place
    return before


def enriched_places(path: Path) -> Counter[Place]:
    """The number of lines in the file of enriched records for each record."""
    with path.open("rb") as lines:
        return Counter(Place(record["partition"], record["offset"]) for record in map(json.loads, lines))


@dataclass(frozen=True, slots=True)
class Result:
    """All results of the demo.

    ``handler`` and ``service``: the parallel run as seen by each. ``lines``: lines of the file of enriched records by
    their record. ``kills``: number of kills; ``kills_asked``: as requested.
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
        """The ratio of our rate to the plain loop's."""
        return self.handler.rate / self.plain.rate if self.plain.rate else 0.0

    @property
    def passed(self) -> bool:
        """Whether all checks passed."""
        return all(check.passed for check in self.checks())

    def checks(self) -> list[Check]:
        """All promises; the order of keys as seen by the handler and by the service."""
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
        """Every produced record must be handled to its end, answered by the service, and in the file."""
        handler, service, file = self.handler.lost, self.service.lost, self.produced - len(self.lines)
        lost = max(handler, service, file)
        figures = f"{lost} lost of {self.produced:,} (handler {handler}, service {service}, file {file})"
        return Check("no record lost", lost == 0, figures)

    def _all_committed(self) -> Check:
        """The committed offset of every partition must be its end offset."""
        behind = [at for at in self.offsets if at.committed != at.end]
        figures = f"{len(self.offsets) - len(behind)} of {len(self.offsets)} partitions at their end"
        if behind:
            figures += ": " + ", ".join(f"{at.partition} at {at.committed} of {at.end}" for at in behind)
        return Check("committed offsets = end offsets", not behind, figures)


def show(result: Result, console: Console) -> None:
    """Print the figures of both ways, and the checks."""
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
