"""The commands: their options and help. The code is imported when one runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import App, Group, Parameter
from cyclopts.types import PositiveInt

from aioparallel.cli.cluster import Cluster
from aioparallel.cli.parsing import name_and_value

__all__ = ["Creating", "topics"]

HOW: Final = Group("How", sort_key=2)

Json = Annotated[bool, Parameter(name="--json", help="One JSON object a line instead, for scripts.", group=HOW)]


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Creating:
    """Options of create. Raises ConfigurationError."""

    replication: PositiveInt | None = None
    """Replicas of each partition; not given: 3, or as many as there are brokers if they are fewer."""
    config: Annotated[tuple[str, ...], Parameter(metavar="NAME=VALUE")] = ()
    """A topic config of Kafka, as in `retention.ms=86400000`. Repeatable."""
    if_missing: bool = False
    """A topic that exists is no error and stays as it is."""

    def __post_init__(self) -> None:
        self.configs()

    def configs(self) -> dict[str, str]:
        """The parsed ``config`` options."""
        allowed = "must be NAME=VALUE, as in retention.ms=86400000"
        return dict(name_and_value("config", text, allowed) for text in self.config)


topics = App(
    name="topics",
    help="""Topics: list, describe, create and delete them.

    **Examples**

    - `aioparallel topics create orders:8 orders.dlq`
    - `aioparallel topics describe orders`
    """,
)


@topics.command(name="list")
async def list_command(*, as_json: Json = False, where: Cluster = Cluster()) -> None:
    """List the topics that this user may see, with their partitions and the number of offsets in their logs.

    Compacted topics and those with transactions have fewer records than offsets.
    """
    from aioparallel.cli.topics.managing import list_topics  # noqa: PLC0415 - brings the Kafka client

    await list_topics(where, as_json=as_json)


@topics.command(name="describe")
async def describe_command(
    topic: Annotated[str, Parameter(help="The topic.")], /, *, as_json: Json = False, where: Cluster = Cluster()
) -> None:
    """Show a topic's partitions, with first and next offset, leader and replicas, and the configs that differ from the
    brokers' defaults.

    With `--json` one object for each partition.
    """
    from aioparallel.cli.topics.managing import describe_topic  # noqa: PLC0415 - brings the Kafka client

    await describe_topic(topic, where, as_json=as_json)


@topics.command(name="create")
async def create_command(
    names: Annotated[
        tuple[str, ...],
        Parameter(help="`name`, `name:partitions` or `name:partitions:compact`; one partition by default."),
    ],
    /,
    *,
    how: Creating = Creating(),
    where: Cluster = Cluster(),
) -> None:
    """Create topics, and wait until each partition has a leader.

    **Examples**

    - `aioparallel topics create orders:8 orders.dlq --config retention.ms=86400000`
    - `aioparallel topics create seen:8:compact --if-missing`
    """
    from aioparallel.cli.topics.managing import create_topics  # noqa: PLC0415 - brings the Kafka client

    await create_topics(names, how, where)


@topics.command(name="delete")
async def delete_command(
    names: Annotated[tuple[str, ...], Parameter(help="The topics.")],
    /,
    *,
    yes: Annotated[bool, Parameter(alias="-y", help="Do not ask.", group=HOW)] = False,
    where: Cluster = Cluster(),
) -> None:
    """Delete topics with all their records. This cannot be undone."""
    from aioparallel.cli.topics.managing import delete_topics  # noqa: PLC0415 - brings the Kafka client

    await delete_topics(names, where, yes=yes)
