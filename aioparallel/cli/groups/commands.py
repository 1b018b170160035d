"""The commands: their options and help. The code is imported when one runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from cyclopts import App, Group, Parameter
from cyclopts.types import NonNegativeInt

from aioparallel.cli.cluster import WHERE, Cluster
from aioparallel.cli.database import Database
from aioparallel.cli.parsing import name_and_value, parse_duration
from aioparallel.records.errors import ConfigurationError

__all__ = ["GroupAccess", "Limits", "Serving", "Showing", "groups"]

WHICH: Final = Group("Which partitions", sort_key=1)
HOW: Final = Group("How", sort_key=2)
LIMITS: Final = Group("Exit code 4", sort_key=3)
STUCK_AFTER: Final = 60.0  # seconds

Json = Annotated[bool, Parameter(name="--json", help="One JSON object a line instead, for scripts.", group=HOW)]


@Parameter(name="*", group=WHERE)
@dataclass(frozen=True, kw_only=True, slots=True)
class GroupAccess(Cluster):
    """Options to reach the cluster, and what else the group's work depends on. Raises ConfigurationError."""

    kmq: Annotated[tuple[str, ...], Parameter(metavar="QUEUE[=MARKERS]")] = ()
    """A topic of the group is a queue with redelivery markers: its open records count as work. The marker topic is
    `QUEUE-markers`, unless another one is given. Repeatable."""
    stored_in: Database = field(default_factory=Database)

    def __post_init__(self) -> None:
        self.queues()

    def queues(self) -> dict[str, str | None]:
        """The marker topics by their queues, from ``kmq``; None: the default."""
        allowed = "must be QUEUE or QUEUE=MARKERS, as in jobs=jobs-markers"
        return {
            name: markers
            for text in self.kmq
            for name, markers in [name_and_value("kmq", text, allowed) if "=" in text else (text, None)]
        }


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Showing:
    """Options of show. Raises ConfigurationError."""

    topic: Annotated[tuple[str, ...], Parameter(group=WHICH)] = ()
    """Only this topic. Repeatable."""
    stuck: Annotated[tuple[str, ...] | None, Parameter(group=WHICH, consume_multiple=(0, 1), metavar="AGE")] = None
    """Only partitions whose oldest incomplete record is older than AGE (`30s`, `10m`, `2h`); a minute if no AGE is
    given. The exit code is 4 if there is one."""
    count: bool = False
    """Read all records that are left, and count them: exact also with transaction markers and compacted topics."""
    watch: Annotated[bool, Parameter(alias="-w")] = False
    """Repeat until Ctrl-C."""
    every: float = 2.0
    """With --watch: seconds between two updates."""
    as_json: Annotated[bool, Parameter(name="--json")] = False
    """One JSON object a line instead, for scripts: one for the group, and one for each partition."""

    def __post_init__(self) -> None:
        if self.every <= 0:
            raise ConfigurationError("every", self.every, "must be above 0 seconds")
        _ = self.stuck_after

    @property
    def stuck_after(self) -> float | None:
        """The age of ``stuck`` in seconds; None: all partitions."""
        if self.stuck is None:
            return None
        return parse_duration("stuck", self.stuck[0]) if self.stuck else STUCK_AFTER


@Parameter(name="*", group=LIMITS)
@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits that give another exit code when they are exceeded."""

    max_remaining: NonNegativeInt | None = None
    """The exit code is 4 if more than this many records of the group are left."""


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """Options of serve. Raises ConfigurationError."""

    port: Annotated[int, Parameter(metavar="PORT")] = 9308
    """The port to listen at; 0: a free one."""
    host: str = "127.0.0.1"
    """The address to listen at. `0.0.0.0` lets other machines read the figures, without a login."""
    topic: tuple[str, ...] = ()
    """A topic that the groups read. While a group has committed nothing of it, all its records count as remaining, so
    that an autoscaler can start the first pod. Give the names of the groups, too. Repeatable. Not for share groups."""
    keep: float = 2.0
    """Seconds for which an answer is used again, so that many readers do not mean many requests to Kafka."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65_536:
            raise ConfigurationError("port", self.port, "must be from 0 to 65535")
        if self.keep < 0:
            raise ConfigurationError("keep", self.keep, "must not be negative")


groups = App(
    name="groups",
    help="""Consumer groups: the work that is left, by their commits and offset maps.

    Lag by offsets counts everything above the committed offset. A consumer that completes records out of order has
    completed many of these; the offset map in its commit says which. **Remaining** counts only what is not complete.

    **Examples**

    - `aioparallel groups list`
    - `aioparallel groups show billing`
    - `aioparallel groups show billing --stuck 10m`
    - `aioparallel groups serve billing --port 9308`
    """,
)


@groups.command(name="list")
async def list_command(*, as_json: Json = False, where: Cluster = Cluster()) -> None:
    """List the groups that this user may see: state, type, members, lag and remaining records.

    No record is read. So remaining is an upper bound: markers of transactions and compacted offsets above a map count.
    Of share groups nothing is known here: `aioparallel share list` has their members and lag.
    """
    from aioparallel.cli.groups.showing import list_groups  # noqa: PLC0415 - brings the Kafka client

    await list_groups(where, as_json=as_json)


@groups.command(name="show")
async def show_command(
    group: Annotated[str, Parameter(help="The consumer group.")],
    /,
    *,
    how: Showing = Showing(),
    limits: Limits = Limits(),
    where: GroupAccess = GroupAccess(),
) -> int:
    """Show a group by partition: lag, remaining records, the oldest incomplete one, the offset map, and members.

    It joins no group and commits nothing. A strip shows each map from the committed offset to the highest completed
    one. The exit code is 4 if --max-remaining is exceeded, or if --stuck finds a partition.

    **Examples**

    - `aioparallel groups show billing --watch`
    - `aioparallel groups show billing --stuck 10m`
    - `aioparallel groups show billing --max-remaining 10000 --json`
    - `aioparallel groups show workers --kmq jobs`
    - `aioparallel groups show save --database postgresql+asyncpg://app@db/app`
    """
    from aioparallel.cli.groups.showing import show_group  # noqa: PLC0415 - brings the Kafka client

    return await show_group(group, how, limits, where)


@groups.command(name="serve")
async def serve_command(
    names: Annotated[
        tuple[str, ...],
        Parameter(help="Consumer groups and share groups; all that this user may see if none is given."),
    ] = (),
    /,
    *,
    how: Serving = Serving(),
    where: GroupAccess = GroupAccess(),
) -> None:
    """Serve the remaining work of groups over HTTP until Ctrl-C, for autoscalers and Prometheus.

    `/groups/NAME` is a JSON object with `remaining`, for KEDA's metrics-api scaler; that of a share group has `lag`
    instead. `/metrics` is Prometheus text for all groups. Only this machine can connect, unless `--host` says
    otherwise; there is no login and no TLS.

    **Examples**

    - `aioparallel groups serve billing`
    - `aioparallel groups serve billing orders --host 0.0.0.0 --port 8080`
    """
    from aioparallel.cli.groups.serving import serve_groups  # noqa: PLC0415 - brings the Kafka client

    await serve_groups(names, how, where)
