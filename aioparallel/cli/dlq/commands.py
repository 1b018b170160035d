"""The four commands: their options and help. The code is imported when one runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import App, Group, Parameter

from aioparallel.cli.cluster import WHERE, Cluster
from aioparallel.cli.dlq.selecting import WHICH, Selection

__all__ = ["Access", "Dropping", "Looking", "Replaying", "Settling", "Showing", "dlq"]

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


dlq = App(
    name="dlq",
    help="""Dead letters: list and show them, replay them, or drop them.

    A record that its handler could not handle is in a topic such as `orders.dlq`, unchanged, with its error in headers.
    **list** and **show** print letters; **replay** sends them to where they came from, and **drop** sends nothing. Both
    settle a letter: it is no longer listed, and not replayed again.

    A consumer group of these commands (`--group`) remembers which letters are settled, as Kafka cannot delete single
    records of a log. All four commands have the same options for *which* letters.

    **Examples**

    - `aioparallel dlq list orders.dlq`
    - `aioparallel dlq show orders.dlq --partition 0 --offset 17`
    - `aioparallel dlq replay orders.dlq --error TimeoutError --since 2h`
    - `aioparallel dlq drop orders.dlq --until 30d --delete`
    """,
)


@dlq.command(name="list")
async def list_command(
    topic: Topic, /, *, which: Selection = Selection(), how: Looking = Looking(), where: Access = Access()
) -> None:
    """Show a line for each open letter: where it is, when and why it failed, where it came from.

    The newest 100 unless a number is given, the newest at the bottom; below them the number of letters by error. With
    `--json` all of them, in the order of the log.

    **Examples**

    - `aioparallel dlq list orders.dlq`
    - `aioparallel dlq list orders.dlq --error ValueError --since 3h`
    - `aioparallel dlq list orders.dlq --origin orders:3 --all`
    - `aioparallel dlq list orders.dlq --json | jq -r .error.type | sort | uniq -c`
    """
    from aioparallel.cli.dlq.looking import list_letters  # noqa: PLC0415 - brings the Kafka client

    await list_letters(topic, which, how, where)


@dlq.command(name="show")
async def show_command(
    topic: Topic, /, *, which: Selection = Selection(), how: Showing = Showing(), where: Access = Access()
) -> None:
    """Show everything about letters: error and traceback, headers, key and value.

    The newest open letter, or the newest 10 that match if some are selected, unless a number is given; with `--json`
    all that match. JSON is indented, other text shown as it is, and of binary data
    the first 512 bytes are dumped. If a letter lacks a part of its record, because the whole was too large for the
    topic, that part is read from the original record while it exists.

    **Examples**

    - `aioparallel dlq show orders.dlq`: the newest
    - `aioparallel dlq show orders.dlq --error ValueError --limit 1`: the oldest with that error
    - `aioparallel dlq show orders.dlq --partition 0 --offset 17 --raw > value.bin`
    """
    from aioparallel.cli.dlq.looking import show_letters  # noqa: PLC0415 - brings the Kafka client

    await show_letters(topic, which, how, where)


@dlq.command(name="replay")
async def replay_command(
    topic: Topic, /, *, which: Selection = Selection(), how: Replaying = Replaying(), where: Access = Access()
) -> bool:
    """Send open letters back to the topic they came from, and settle them. All of them unless some are selected, also
    those that `list` does not show because it stops at the newest 100.

    Key, value and the record's own headers are as they were, plus a header with its original place; the timestamp is
    the time of sending. The letters of a partition are sent in order, and each is settled only once the broker has
    acknowledged it. After an interruption run it again; what was settled is not sent twice. A letter that lacks a part
    of its record is completed from the original record; if that is gone, it is not sent.

    Every consumer group that reads the topic gets these records again, also the groups that have handled them. `--to`
    sends them to another topic, which only the group that failed reads.

    The exit code is 1 when a letter could not be sent or settled.

    **Examples**

    - `aioparallel dlq replay orders.dlq --dry-run`: what would be sent where
    - `aioparallel dlq replay orders.dlq --limit 10`: the ten oldest first
    - `aioparallel dlq replay orders.dlq --error TimeoutError --yes`
    - `aioparallel dlq replay orders.dlq --to orders.repair --no-mark`
    """
    from aioparallel.cli.dlq.settling import replay_letters  # noqa: PLC0415 - brings the Kafka client

    return await replay_letters(topic, which, how, where)


@dlq.command(name="drop")
async def drop_command(
    topic: Topic, /, *, which: Selection = Selection(), how: Dropping = Dropping(), where: Access = Access()
) -> bool:
    """Settle open letters without sending them. All of them unless some are selected.

    They are no longer listed or replayed. They stay in the topic until Kafka's retention or `--delete` removes them;
    `list --all` and `show --all` still find them.

    **Examples**

    - `aioparallel dlq drop orders.dlq --partition 0 --offset 17`
    - `aioparallel dlq drop orders.dlq --until 30d --dry-run`
    - `aioparallel dlq drop orders.dlq --error ValueError --delete`
    """
    from aioparallel.cli.dlq.settling import drop_letters  # noqa: PLC0415 - brings the Kafka client

    return await drop_letters(topic, which, how, where)
