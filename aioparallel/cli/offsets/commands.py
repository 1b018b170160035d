"""The commands: their options and help. The code is imported when one runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import App, Group, Parameter
from cyclopts.types import NonNegativeInt, PositiveInt

from aioparallel.cli.cluster import Cluster
from aioparallel.cli.database import Database
from aioparallel.cli.parsing import parse_time, understood
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition

__all__ = ["Doing", "Rewinding", "Via", "offsets"]

TOKEN: Final = "AIOPARALLEL_OFFSETS_TOKEN"
"""The variable that has the token of the endpoints."""

WHICH: Final = Group("Which partitions", sort_key=1)
HOW: Final = Group("How", sort_key=2)

GroupName = Annotated[str, Parameter(help="The consumer group. It must have no members.")]
Places = Annotated[
    tuple[str, ...],
    Parameter(help="`topic:partition:offset`, or `topic:partition:first-last`, such as `orders:3:1234`."),
]


@Parameter(name="*", group=HOW)
@dataclass(frozen=True, kw_only=True, slots=True)
class Doing:
    """Options of all changes."""

    execute: bool = False
    """Commit. Without it nothing is changed: the command only says what would be committed, and what would run
    again."""


@Parameter(name="*", group=WHICH)
@dataclass(frozen=True, kw_only=True, slots=True)
class Rewinding:
    """Where to rewind to."""

    to: Annotated[float | None, understood(parse_time, "TIME")] = None
    """To the first record at or after this: a duration ago (`30m`, `2h`, `3d`) or an ISO time, which is local time
    without a zone such as `Z`. All offsets from there on run again."""
    by: PositiveInt | None = None
    """By this many offsets below the committed one."""
    to_offset: NonNegativeInt | None = None
    """To this offset; with one partition."""
    topic: tuple[str, ...] = ()
    """Only this topic. Repeatable."""
    partition: tuple[NonNegativeInt, ...] = ()
    """Only this partition of one --topic. Repeatable."""

    def check(self) -> None:
        """Raise ConfigurationError if it is not clear where to rewind to."""
        given = [name for name in ("to", "by", "to_offset") if getattr(self, name) is not None]
        if len(given) != 1:
            value = getattr(self, given[1]) if given else None
            raise ConfigurationError(given[1] if given else "to", value, "give exactly one of --to, --by, --to-offset")
        if self.partition and len(self.topic) != 1:
            raise ConfigurationError("partition", self.partition[0], "needs exactly one --topic")

    def includes(self, place: TopicPartition) -> bool:
        """Whether this partition is meant."""
        return (not self.topic or place.topic in self.topic) and (
            not self.partition or place.partition in self.partition
        )


@Parameter(name="*", group=Group("A running group", sort_key=4))
@dataclass(frozen=True, kw_only=True, slots=True)
class Via:
    """Members that skip the offsets themselves."""

    via: Annotated[tuple[str, ...], Parameter(metavar="URL")] = ()
    """Ask this member of the running group, whose consumer has an `OffsetsEndpoint`: `http://127.0.0.1:9180`.
    Repeatable: the one that has the partition does it."""
    token_file: Annotated[Path | None, Parameter(metavar="PATH")] = None
    """A file with the token of the endpoints. Not given: the variable `AIOPARALLEL_OFFSETS_TOKEN`."""

    def token(self) -> str:
        """The token. Raises ConfigurationError."""
        if self.token_file is None:
            found = os.environ.get(TOKEN, "")
            if not found:
                raise ConfigurationError("token_file", None, f"must be given, or the variable {TOKEN}")
            return _checked(found, f"the variable {TOKEN}")
        try:
            found = self.token_file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigurationError("token_file", str(self.token_file), f"cannot be read: {error}") from error
        return _checked(found, "the file")


def _checked(text: str, what: str) -> str:
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError("token_file", None, f"{what} must have one token of printable ASCII characters")
    return token


offsets = App(
    name="offsets",
    help="""Offsets of a group that is stopped: skip or redo single records, rewind, export and import.

    The offset map of each commit is kept, in its format: records that are complete stay complete, unless they are
    named. Tools that set offsets without the map make all of them run again. Nothing is changed without `--execute`. A
    group with members is refused, except that a running member can skip records itself: `skip --via`.

    **Examples**

    - `aioparallel offsets skip billing orders:3:1234 --execute`
    - `aioparallel offsets skip billing orders:3:1234 --via http://127.0.0.1:9180 --execute`
    - `aioparallel offsets redo billing orders:3:1234 orders:0:17-20`
    - `aioparallel offsets rewind billing --to 2h`
    - `aioparallel offsets export billing billing.json`
    """,
)


@offsets.command(name="skip")
async def skip_command(
    group: Annotated[str, Parameter(help="The consumer group. It must have no members, unless --via is given.")],
    places: Places = (),
    /,
    *,
    how: Doing = Doing(),
    via: Via = Via(),
    where: Cluster = Cluster(),
    stored_in: Database = Database(),
) -> None:
    """Mark these offsets complete, so that their records do not run. All others stay as they are.

    Refused below the committed offset, at or above the end of the log, and if the map cannot hold the offset: because
    it is too far above, or because the text would be longer than the brokers accept.

    With `--via` members of the running group do it, wherever the record is: a handler that runs is cancelled. Then no
    broker and no database are asked from here.
    """
    if via.via:
        from aioparallel.cli.offsets.asking import skip_via  # noqa: PLC0415

        await skip_via(group, places, how, via)
        return
    from aioparallel.cli.offsets.changing import skip  # noqa: PLC0415 - brings the Kafka client

    await skip(group, places, how, where, stored_in)


@offsets.command(name="redo")
async def redo_command(
    group: GroupName,
    places: Places = (),
    /,
    *,
    how: Doing = Doing(),
    where: Cluster = Cluster(),
    stored_in: Database = Database(),
) -> None:
    """Mark these offsets incomplete, so that exactly these records run again.

    They may be far below the committed offset: the map then has everything between as complete.
    """
    from aioparallel.cli.offsets.changing import redo  # noqa: PLC0415 - brings the Kafka client

    await redo(group, places, how, where, stored_in)


@offsets.command(name="rewind")
async def rewind_command(
    group: GroupName,
    /,
    *,
    to: Rewinding = Rewinding(),
    how: Doing = Doing(),
    where: Cluster = Cluster(),
    stored_in: Database = Database(),
) -> None:
    """Mark everything from an offset or a time on as incomplete, so that it runs again. What is below stays as it is.

    It never moves a position forward: records that are not complete are never skipped.

    **Examples**

    - `aioparallel offsets rewind billing --to 2026-03-01T14:30`
    - `aioparallel offsets rewind billing --by 1000 --topic orders`
    - `aioparallel offsets rewind billing --to-offset 4711 --topic orders --partition 3 --execute`
    """
    from aioparallel.cli.offsets.changing import rewind  # noqa: PLC0415 - brings the Kafka client

    await rewind(group, to, how, where, stored_in)


@offsets.command(name="export")
async def export_command(
    group: Annotated[str, Parameter(help="The consumer group.")],
    file: Annotated[Path | None, Parameter(help="A new file; standard output if it is not given.")] = None,
    /,
    *,
    where: Cluster = Cluster(),
    stored_in: Database = Database(),
) -> None:
    """Write the positions of a group with their offset maps as JSON."""
    from aioparallel.cli.offsets.exporting import export  # noqa: PLC0415 - brings the Kafka client

    await export(group, file, where, stored_in)


@offsets.command(name="import")
async def import_command(
    group: Annotated[str, Parameter(help="The consumer group. It must have no members, and may be new.")],
    file: Annotated[Path, Parameter(help="A file that export has written.")],
    /,
    *,
    how: Doing = Doing(),
    where: Cluster = Cluster(),
    stored_in: Database = Database(),
) -> None:
    """Set the positions of a group to those of a file, maps included. Partitions that are not in it stay as they are.

    It may move positions forward: the dry run says which offsets would not run.
    """
    from aioparallel.cli.offsets.exporting import import_file  # noqa: PLC0415 - brings the Kafka client

    await import_file(group, file, how, where, stored_in)
