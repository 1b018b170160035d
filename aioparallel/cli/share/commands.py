"""The commands: their options and help. The code is imported when one runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from cyclopts import App, Group, Parameter
from cyclopts.types import NonNegativeInt

from aioparallel.cli.cluster import WHERE, Cluster
from aioparallel.cli.parsing import parse_time, understood
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition

__all__ = ["Doing", "Limits", "Resetting", "Target", "share"]

WHICH: Final = Group("Which partitions", sort_key=1)
HOW: Final = Group("How", sort_key=2)
LIMITS: Final = Group("Exit code 4", sort_key=3)

Json = Annotated[bool, Parameter(name="--json", help="One JSON object a line instead, for scripts.", group=HOW)]
GroupName = Annotated[str, Parameter(help="The share group. It must have no members.")]

Target = Literal["earliest", "latest"] | float
"""The beginning or the end of the log, or a time in seconds since the epoch."""


def parse_target(text: str) -> Target:
    """Parses what ``--to`` gets. Raises ConfigurationError."""
    match text:
        case "earliest" | "latest":
            return text
    try:
        return parse_time(text)
    except ConfigurationError:
        raise ConfigurationError(
            "to",
            text,
            "must be earliest, latest, a duration ago (90s, 30m, 2h, 3d, 1w), or an ISO time like 2026-03-01T14:30",
        ) from None


@Parameter(name="*", group=WHERE)
@dataclass(frozen=True, kw_only=True, slots=True)
class Brokers(Cluster):
    """Options to reach a cluster of which no records are read."""

    skip_unreadable: Annotated[tuple[str, ...], Parameter(parse=False, show=False)] = ()


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Doing:
    """Options of all changes."""

    execute: bool = False
    """Do it. Without it nothing is changed: the command only says what would change."""


@Parameter(name="*", group=LIMITS)
@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits that give another exit code when they are exceeded."""

    max_lag: NonNegativeInt | None = None
    """The exit code is 4 if more than this many records of the group have not ended."""


@Parameter(name="*", group=WHICH)
@dataclass(frozen=True, kw_only=True, slots=True)
class Resetting:
    """Where to start anew. Raises ConfigurationError."""

    to: Annotated[Target | None, understood(parse_target, "WHERE"), Parameter(show_choices=False)] = None
    """`earliest`: the first record of the log. `latest`: its end. Or the first record at or after a time: a duration
    ago (`30m`, `2h`, `3d`) or an ISO time, which is local time without a zone such as `Z`. Required."""
    topic: tuple[str, ...] = ()
    """Only this topic, which the group may be new to. Repeatable. Not given: all that the group has read."""
    partition: tuple[NonNegativeInt, ...] = ()
    """Only this partition of one --topic. Repeatable."""

    def __post_init__(self) -> None:
        if self.partition and len(self.topic) != 1:
            raise ConfigurationError("partition", self.partition[0], "needs exactly one --topic")

    def target(self) -> Target:
        """What ``to`` says. Raises ConfigurationError."""
        if self.to is None:
            raise ConfigurationError("to", None, "must be given: earliest, latest, or a time such as 2h")
        return self.to

    def includes(self, place: TopicPartition) -> bool:
        """Whether this partition is meant."""
        return not self.partition or place.partition in self.partition


share = App(
    name="share",
    help="""Share groups: who is a member, how far the group is, and where it starts.

    In a share group each record is acknowledged by itself, so a partition has no committed offset. It has a **start
    offset**: all records below have ended. The lag counts those that have not. Needs Kafka 4.2 or later.

    **Examples**

    - `aioparallel share list`
    - `aioparallel share describe workers`
    - `aioparallel share configure workers share.auto.offset.reset=earliest`
    - `aioparallel share reset workers --to 2h --execute`
    """,
)


@share.command(name="list")
async def list_command(*, as_json: Json = False, where: Brokers = Brokers()) -> None:
    """List the share groups that this user may see: state, members, topics and lag."""
    from aioparallel.cli.share.showing import list_groups  # noqa: PLC0415 - brings the Kafka client

    await list_groups(where, as_json=as_json)


@share.command(name="describe")
async def describe_command(
    group: Annotated[str, Parameter(help="The share group.")],
    /,
    *,
    as_json: Json = False,
    limits: Limits = Limits(),
    where: Brokers = Brokers(),
) -> int:
    """Show a share group: its members with their partitions, its configuration, and by partition start offset, end of
    the log, and lag.

    A group that no member has joined is shown if it is configured. Several members may have the same partition. The
    coordinator may show an older start offset, while the lag is that of now. It knows the lag of a partition once a
    record of it has ended. With `--json` one object for the group, and one for each partition; an unknown lag is null.
    The exit code is 4 if --max-lag is exceeded, and 1 if that is unknown.

    **Examples**

    - `aioparallel share describe workers`
    - `aioparallel share describe workers --max-lag 10000`
    """
    from aioparallel.cli.share.showing import describe  # noqa: PLC0415 - brings the Kafka client

    return await describe(group, limits, where, as_json=as_json)


@share.command(name="configure")
async def configure_command(
    group: Annotated[str, Parameter(help="The share group, which may not exist yet.")],
    configs: Annotated[
        tuple[str, ...],
        Parameter(help="`NAME=VALUE`, such as `share.auto.offset.reset=earliest`; `NAME=` sets the default again."),
    ] = (),
    /,
    *,
    where: Brokers = Brokers(),
) -> None:
    """Set configs of a group at the brokers. Its members follow them, also while they run. A group of another type is
    refused. If there is no such group yet, the command says so, as the name may be wrong.

    - `share.auto.offset.reset`: where the group starts in a partition that is new to it. `latest` by default, so
      records that are there before its first member are never delivered. `earliest`, or `by_duration:PT2H`.
    - `share.delivery.count.limit`: after so many deliveries a record is given up. 5 by default.
    - `share.record.lock.duration.ms`: how long a member has a record if it does not renew the lock. 30,000 by default.

    **Example**

    - `aioparallel share configure workers share.auto.offset.reset=earliest`
    """
    from aioparallel.cli.share.resetting import configure  # noqa: PLC0415 - brings the Kafka client

    await configure(group, configs, where)


@share.command(name="reset")
async def reset_command(
    group: GroupName,
    /,
    *,
    to: Resetting = Resetting(),
    how: Doing = Doing(),
    where: Brokers = Brokers(),
) -> None:
    """Let the group start anew from the beginning, the end, or a time. Everything from there on is delivered again,
    with delivery count 1, whether it was handled or not. What is below is never delivered.

    Nothing is changed without `--execute`, and a group with members is refused.

    **Examples**

    - `aioparallel share reset workers --to earliest --topic jobs`
    - `aioparallel share reset workers --to 2026-03-01T14:30 --execute`
    """
    from aioparallel.cli.share.resetting import reset  # noqa: PLC0415 - brings the Kafka client

    await reset(group, to, how, where)


@share.command(name="forget")
async def forget_command(
    group: GroupName,
    topics: Annotated[tuple[str, ...], Parameter(help="The topics.")] = (),
    /,
    *,
    how: Doing = Doing(),
    where: Brokers = Brokers(),
) -> None:
    """Delete what the group knows of topics that it does not read any more. They count in its lag no more. If it reads
    one again, it starts there as its config `share.auto.offset.reset` says.

    Nothing is changed without `--execute`, and a group with members is refused.
    """
    from aioparallel.cli.share.resetting import forget  # noqa: PLC0415 - brings the Kafka client

    await forget(group, topics, how, where)
