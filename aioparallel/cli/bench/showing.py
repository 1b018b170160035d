"""Prints the measurements as a table, with what limits the rate."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.table import Table

from aioparallel.cli.bench.command import BenchSettings

__all__ = ["Seen", "limit_of", "show"]

NEAR: Final = 0.8
_LATE: Final = 2.0
"""Handlers that take so many times as long as they sleep wait for the event loop."""
"""The part of a maximum from which on it counts as the limit."""


@dataclass(slots=True)
class Seen:
    """Measurements of a run of the parallel consumer."""

    handled: int = 0
    seconds: float = 0.0
    """From the start of the first handler to the end of the last one."""
    cpu: float = 0.0
    """Seconds of the event loop's thread."""
    busy: float = 0.0
    """Sum of all handlers' seconds."""
    hold: float = 0.0
    """Longest delay of the event loop in seconds."""
    keys: dict[tuple[int, int], bytes | None] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)
    paced_rate: float = 0.0
    lag: int = 0
    """The highest lag while records were sent."""
    problems: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.handled / self.seconds if self.seconds else 0.0


def show(settings: BenchSettings, plain: float, seen: Seen, console: Console) -> None:
    """Print the table. ``plain``: the plain loop's records per second."""
    table = Table(show_header=False)
    count = seen.handled
    table.add_row("plain loop", f"{plain:,.0f} records/s")
    table.add_row(settings.consumer, f"{seen.rate:,.0f} records/s ({seen.rate / plain:,.1f} times)" if plain else "-")
    table.add_row("CPU of the event loop", f"{seen.cpu / max(count, 1) * 1e6:,.1f} µs a record")
    table.add_row("longest hold of the event loop", f"{seen.hold * 1e3:.1f} ms")
    if seen.latencies:
        ordered = sorted(seen.latencies)
        shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
        shown = ", ".join(
            f"{name} {ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3:,.1f} ms"
            for name, share in shares.items()
        )
        table.add_row(f"sent to handler, at {seen.paced_rate:,.0f} records/s", shown)
        if not settings.share:  # a member of a share group does not know where its partitions end
            table.add_row("highest lag then", f"{seen.lag:,} records")
    table.add_row("what limits", limit_of(settings, seen))
    if settings.share:
        checked = "each record once, all acknowledged" if settings.topic is None else "once"
    else:
        checked = "each record once, keys in order, all committed" if settings.topic is None else "once, keys in order"
    table.add_row("checks", "[bold red]FAILED[/]" if seen.problems else f"passed: {checked}")
    console.print(table)
    for problem in seen.problems:
        console.print(problem, markup=False)


def limit_of(settings: BenchSettings, seen: Seen) -> str:
    """A sentence about what limits the rate."""
    seconds, took = max(seen.seconds, 1e-9), seen.busy / max(seen.handled, 1)
    if seen.cpu / seconds >= NEAR:
        return f"CPU: the event loop's core is {seen.cpu / seconds:.0%} busy; more processes go on from here"
    keys = {} if settings.share else seen.keys
    lanes = Counter((partition, key) for (partition, _), key in keys.items() if key is not None)
    (_, key), most = lanes.most_common(1)[0] if lanes else ((0, b""), 0)
    if most * took / seconds >= NEAR:
        return f"the order of keys: {most:,} records of key {key!r} run one after the other, {most * took:.1f} s"
    if seen.busy / settings.concurrency / seconds >= NEAR:
        if took * 1e3 > _LATE * max(settings.handler_ms, 1.0):
            return (
                f"the event loop is late: handlers that sleep {settings.handler_ms:g} ms take {took * 1e3:,.1f} ms, "
                f"while its core is {seen.cpu / seconds:.0%} busy; look at what else runs here, such as the brokers"
            )
        return f"concurrency: {settings.concurrency} handlers run nearly all the time; raise --concurrency"
    return "reading: neither CPU nor handlers are busy all the time; look at brokers, network, and what else runs here"
