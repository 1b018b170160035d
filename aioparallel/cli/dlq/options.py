"""The options that the commands share, beside those of :mod:`~aioparallel.cli.dlq.selecting`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Group, Parameter

from aioparallel.cli.cluster import WHERE, Cluster
from aioparallel.cli.dlq.selecting import WHICH

__all__ = ["Access", "Dropping", "Looking", "Replaying", "Settling", "Showing", "Topic"]

HOW: Final = Group("How", sort_key=2)

Topic = Annotated[str, Parameter(help="The topic with the dead letters, such as `orders.dlq`.")]


@Parameter(name="*", group=WHERE)
@dataclass(frozen=True, kw_only=True, slots=True)
class Access(Cluster):
    """How the cluster is reached, and the group that remembers what is settled."""

    group: str = "aioparallel-dlq"
    """The consumer group that remembers which letters are settled."""


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Looking:
    """How list and show tell."""

    everything: Annotated[bool, Parameter(name="--all", group=WHICH)] = False
    """Also settled letters (replayed or dropped) and records that are no letters."""
    as_json: Annotated[bool, Parameter(name="--json")] = False
    """One JSON object a line instead, for scripts."""


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Showing(Looking):
    """How show tells."""

    raw: bool = False
    """Write only the value, byte by byte, to standard output; for exactly one letter."""


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Settling:
    """What replay and drop may do."""

    dry_run: bool = False
    """Only say what would be done."""
    yes: Annotated[bool, Parameter(alias="-y")] = False
    """Do not ask."""


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Replaying(Settling):
    """How replay sends."""

    to: Annotated[str | None, Parameter(metavar="TOPIC")] = None
    """Send to this topic, not to where each came from."""
    same_partition: bool = False
    """Send to the partition each came from; else its key decides."""
    no_mark: bool = False
    """Settle nothing: the letters stay open, and are sent again the next time."""


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Dropping(Settling):
    """How drop settles."""

    delete: bool = False
    """Then have Kafka delete what is settled: in each partition everything before the first open letter. That is for
    good."""
