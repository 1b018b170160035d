"""The end of the demo: what was measured, what was checked, and where the files are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from aioparallel.cli.demo.checks import Check, Keys, Observed
from aioparallel.cli.demo.cluster import PartitionOffsets
from aioparallel.cli.demo.events import Place

__all__ = ["DemoResult", "enriched_places", "show"]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Everything the demo found out.

    ``handler`` and ``service`` are what each saw of the parallel run; ``lines`` counts the lines of the file of
    enriched records by the record they came from. ``kills`` were made, ``kills_asked`` asked for.
    """

    keys: Keys
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
    def checks(self) -> list[Check]:
        """All promises; with the order of keys as the handler saw it and as the service did."""
        checks = [
            self.nothing_lost(),
            order("handler", self.handler),
            order("service", self.service),
            self.all_committed(),
        ]
        if self.kills_asked:
            kills = f"{self.kills} of {self.kills_asked}"
            checks.append(Check("consumer killed on the way", self.kills == self.kills_asked, kills))
        return checks

    @property
    def passed(self) -> bool:
        """Whether every check did."""
        return all(check.passed for check in self.checks)

    def nothing_lost(self) -> Check:
        """Every produced record: handled to its end, answered by the service, in the file."""
        not_written = len(self.keys.keys() - self.lines.keys())
        lost = max(self.handler.lost, self.service.lost, not_written)
        figures = (
            f"{lost} lost of {len(self.keys):,} (handler {self.handler.lost}, service {self.service.lost}, "
            f"file {not_written})"
        )
        return Check("no record lost", lost == 0, figures)

    def all_committed(self) -> Check:
        """Every partition's committed offset stands at its end."""
        behind = [at for at in self.offsets if at.committed != at.end]
        figures = f"{len(self.offsets) - len(behind)} of {len(self.offsets)} partitions at their end"
        if behind:
            figures += ": " + ", ".join(f"{at.partition} at {at.committed} of {at.end}" for at in behind)
        return Check("committed offsets = end offsets", not behind, figures)

    @property
    def repeated_lines(self) -> int:
        """Lines of the file beyond each record's first."""
        return self.lines.total() - len(self.lines)


def order(who: str, observed: Observed) -> Check:
    """The order of keys as one of the two saw it."""
    return Check(
        f"order of every key, as the {who} saw it",
        observed.key_order_violations == 0,
        f"{observed.key_order_violations} violations in {observed.calls:,} calls",
    )


def enriched_places(path: Path) -> Counter[Place]:
    """How many lines of the file of enriched records each record has."""
    with path.open("rb") as lines:
        records = map(json.loads, lines)
        return Counter(Place(record["partition"], record["offset"]) for record in records)


def show(outcome: DemoResult, console: Console) -> None:
    """Print the two tables."""
    console.print(measured(outcome))
    console.print(checked(outcome))


def measured(outcome: DemoResult) -> Table:
    """The figures of both ways."""
    table = Table("", "plain loop", "aioparallel", title="Measured, first to last handler call")
    if outcome.kills:
        table.caption = "The seconds include the waiting, after each kill, until the dead consumer's session is over."
    table.columns[1].justify = table.columns[2].justify = "right"
    plain, parallel = outcome.plain, outcome.handler
    table.add_row("records", f"{plain.records:,}", f"{parallel.records:,}")
    table.add_row("seconds", f"{plain.seconds:.2f}", f"{parallel.seconds:.2f}")
    table.add_row("records/s", f"{plain.rate:,.0f}", f"{parallel.rate:,.0f}")
    table.add_row("speed-up", "1", f"[bold]{outcome.speed_up:.1f}[/bold]")
    table.add_row("duplicates (handler calls)", f"{plain.duplicates:,}", f"{parallel.duplicates:,}")
    table.add_row("duplicates (lines of the file)", "", f"{outcome.repeated_lines:,}")
    return table


def checked(outcome: DemoResult) -> Table:
    """The checks, with words as well as colours."""
    table = Table("check", "result", "figures", title="Checked, from what the handler and the service saw")
    for check in outcome.checks:
        verdict = "[green]PASS[/green]" if check.passed else "[bold red]FAIL[/bold red]"
        table.add_row(check.promise, verdict, check.figures)
    return table
