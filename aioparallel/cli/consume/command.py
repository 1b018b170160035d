"""The command: its options and help. The code is imported when it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Group, Parameter
from cyclopts.types import NonNegativeInt, PositiveInt

from aioparallel.cli.cluster import Cluster
from aioparallel.cli.parsing import parse_time, understood
from aioparallel.records.errors import ConfigurationError

__all__ = ["Chosen", "Format", "consume"]

WHICH: Final = Group("Which records", sort_key=1)
HOW: Final = Group("How", sort_key=2)


@Parameter(name="*", group=WHICH)
@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The options that select records. Raises ConfigurationError."""

    newest: PositiveInt | None = None
    """This many records, the newest by their timestamps. The default is 10, unless another start is given."""
    everything: Annotated[bool, Parameter(name="--all")] = False
    """From the beginning of the log."""
    since: Annotated[float | None, understood(parse_time, "TIME")] = None
    """From the first record at or after this: a duration ago (`30m`, `2h`, `3d`) or an ISO time, local
    without a zone."""
    offset: NonNegativeInt | None = None
    """From this offset; with one --partition."""
    partition: tuple[NonNegativeInt, ...] = ()
    """Only this partition. Repeatable."""
    key: Annotated[bytes | None, Parameter(metavar="TEXT")] = None
    """Only records with this key."""
    limit: PositiveInt | None = None
    """End after this many records."""
    follow: Annotated[bool, Parameter(alias="-f")] = False
    """Then wait for new records until Ctrl-C."""

    def __post_init__(self) -> None:
        starts = {"newest": "--newest", "everything": "--all", "since": "--since", "offset": "--offset"}
        given = [name for name in starts if getattr(self, name) not in (None, False)]
        if len(given) > 1:
            raise ConfigurationError(given[1], getattr(self, given[1]), f"cannot be combined with {starts[given[0]]}")
        if self.offset is not None and len(set(self.partition)) != 1:
            raise ConfigurationError("offset", self.offset, "needs exactly one --partition")
        if self.newest is not None and self.limit is not None:
            raise ConfigurationError("limit", self.limit, "cannot be combined with --newest")

    @property
    def count(self) -> int | None:
        """How many of the newest records; None: from another start."""
        if self.everything or self.since is not None or self.offset is not None:
            return None
        return self.newest or self.limit or 10


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """Options of the output. Raises ConfigurationError."""

    as_json: Annotated[bool, Parameter(name="--json")] = False
    """One JSON object a line instead, for scripts: place, timestamp, key, value, headers."""
    values: bool = False
    """Only the values, a line each, without a change."""

    def __post_init__(self) -> None:
        if self.as_json and self.values:
            raise ConfigurationError("values", self.values, "cannot be combined with --json")


async def consume(
    topic: Annotated[str, Parameter(help="The topic.")],
    /,
    *,
    which: Chosen = Chosen(),
    how: Format = Format(),
    where: Cluster = Cluster(),
) -> None:
    """Show records of a topic: the newest ten, unless other options select more.

    It joins no group and commits nothing, so it affects no consumer. Only committed records are shown. Records of
    different partitions come in no particular order, except the newest, which are sorted by their timestamps.

    **Examples**

    - `aioparallel consume orders`
    - `aioparallel consume orders --follow`
    - `aioparallel consume orders --since 1h --key 17`
    - `aioparallel consume orders --partition 3 --offset 4711 --limit 1 --json`
    - `aioparallel consume orders --all --values > orders.jsonl`
    """
    from aioparallel.cli.consume.reading import show_records  # noqa: PLC0415 - brings the Kafka client

    await show_records(topic, which, how, where)
