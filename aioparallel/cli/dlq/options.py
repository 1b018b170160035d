"""The options that the commands share, besides those of :mod:`~aioparallel.cli.dlq.selecting`."""

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
    """Options to reach the cluster, and the group that remembers what is settled."""

    group: str = "aioparallel-dlq"
    """The consumer group that remembers which letters are settled."""


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Looking:
    """Options of list and show."""

    everything: Annotated[bool, Parameter(name="--all", group=WHICH)] = False
    """Also settled letters (replayed or dropped) and other records."""
    as_json: Annotated[bool, Parameter(name="--json")] = False
    """One JSON object a line instead, for scripts."""


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Showing(Looking):
    """Options of show."""

    raw: bool = False
    """Write only the value to standard output, without a change; for exactly one letter."""


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Settling:
    """Options of replay and drop."""

    dry_run: bool = False
    """Only print what would be done."""
    yes: Annotated[bool, Parameter(alias="-y")] = False
    """Do not ask."""


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Replaying(Settling):
    """Options of replay."""

    to: Annotated[str | None, Parameter(metavar="TOPIC")] = None
    """Send to this topic instead of the original one."""
    same_partition: bool = False
    """Send to the original partition instead of the one for the key."""
    no_mark: bool = False
    """Settle nothing: the letters stay open, and would be sent again next time."""


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Dropping(Settling):
    """Options of drop."""

    delete: bool = False
    """Also have Kafka delete everything before the first open letter of each partition. This cannot be undone."""
