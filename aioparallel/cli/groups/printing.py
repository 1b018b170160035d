"""Groups as tables for people and as JSON for scripts. Names of JSON fields are a public interface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aioparallel.cli.console import age, counted, plain_text
from aioparallel.cli.formats import iso_time
from aioparallel.cli.groups.reading import GroupView, PartitionView
from aioparallel.cli.groups.strip import ASCII, BLOCKS, Cell, Letters, cells
from aioparallel.clients.aiokafka.group_admin import GroupMember, GroupState
from aioparallel.records.record import TopicPartition

__all__ = ["group_object", "letters_for", "list_table", "objects", "partition_object", "shown"]

STRIP_IN_JSON = 64
_COLOURS = {Cell.COMPLETE: "green", Cell.PARTLY: "yellow", Cell.INCOMPLETE: "red"}
_NARROWEST = 10
_SHARE = "share"


def letters_for(encoding: str) -> Letters:
    """Blocks if the terminal's encoding has them."""
    try:
        "".join(BLOCKS).encode(encoding)
    except (UnicodeError, LookupError):
        return ASCII
    return BLOCKS


# -- tables


def list_table(groups: Sequence[GroupView]) -> Table:
    """A row for each group."""
    table = _table("group", "state", "type", "members", "lag", "remaining at most")
    for one in groups:
        state = one.state
        numbers = [f"{number:,}" for number in (len(state.members), one.lag, one.remaining)]
        if state.type.lower() == _SHARE:
            numbers = ["-"] * len(numbers)  # no commits; `aioparallel share list` has them
        table.add_row(plain_text(one.name), state.state, state.type, *numbers)
    return table


def shown(
    group: GroupView, partitions: Sequence[PartitionView], now: float, limit: int, width: int, letters: Letters
) -> RenderableType:
    """The group, its members, a row for each of ``partitions``, and their maps as strips. ``width``: in columns."""
    parts: list[RenderableType] = [_headline(group), *_epochs_line(group.state)]
    parts += [_member_line(member) for member in group.state.members]
    if partitions:
        table = _table("partition", "committed", "end", "lag", "remaining", "oldest incomplete", "map", "member")
        for one in partitions:
            table.add_row(*_cells(one, now, limit))
        parts += ["", table]
    if strips := [one for one in partitions if one.work.highest_completed is not None]:
        parts += ["", *_strips(strips, width, letters)]
    if any(not one.is_exact for one in partitions):
        parts.append(Text("<= : an upper bound, as not every offset is known to be a record", style="dim"))
    return Group(*parts)


def _headline(group: GroupView) -> Text:
    state = group.state
    remaining = ("" if group.is_exact else "<= ") + f"{group.remaining:,}"
    return Text.assemble(
        (plain_text(group.name), "bold"),
        f": {state.state}, {state.type or 'unknown type'}, {counted(len(state.members), 'member')}; "
        f"lag {group.lag:,}, remaining ",
        (remaining, "bold"),
    )


def _epochs_line(state: GroupState) -> Iterator[Text]:
    """Of a group whose partitions the brokers assign."""
    if state.epoch is not None:
        of_assignment = f"assignment epoch {state.assignment_epoch}"
        yield Text(plain_text(f"  group epoch {state.epoch}, {of_assignment}, assignor {state.assignor}"))


def _member_line(member: GroupMember) -> Text:
    line = f"  {member.client_id} at {member.host}"
    if member.instance_id is not None:
        line += f", static {member.instance_id}"
    if member.epoch is not None:
        protocol = ", of the classic protocol" if member.protocol == "classic" else ""
        line += f", {member.member_id}, epoch {member.epoch}{protocol}"
    line += f": {', '.join(_names(member.partitions)) or 'no partitions'}"
    if member.giving_away:
        line += f"; gives away {', '.join(_names(member.giving_away))}"
    if member.waiting_for:
        line += f"; waits for {', '.join(_names(member.waiting_for))}"
    if member.giving_away or member.waiting_for:
        line += f"; then has {', '.join(_names(member.target or ())) or 'no partitions'}"
    return Text(plain_text(line))


def _names(partitions: Sequence[TopicPartition]) -> list[str]:
    return [f"{one.topic}:{one.partition}" for one in partitions]


def _cells(one: PartitionView, now: float, limit: int) -> Iterator[str]:
    work = one.work
    yield plain_text(f"{work.partition.topic}:{work.partition.partition}")
    yield "-" if work.committed is None else f"{work.committed:,}"
    yield f"{work.end:,}" + (" (below the commit)" if work.is_above_log else "")
    yield f"{work.lag:,}"
    yield ("" if one.is_exact else "<= ") + f"{one.remaining:,}" + _open_text(one)
    oldest = one.oldest_age(now)
    offset = "-" if work.oldest is None else f"{work.oldest:,}"
    yield offset if oldest is None else f"{offset}, {age(oldest)}"
    yield _map_text(one, limit)
    yield "-" if one.member is None else plain_text(f"{one.member.client_id} at {one.member.host}")


def _open_text(one: PartitionView) -> str:
    return "" if one.open is None or not one.open.open else f" ({one.open.open:,} open)"


def _map_text(one: PartitionView, limit: int) -> str:
    stored = one.work.stored
    if stored is None:
        return "-"
    if stored.problem is not None:
        return "no map: progress of Spark" if stored.is_of_spark else "no map: other text"
    if one.in_database:
        return f"{stored.format}, {stored.characters:,} characters"
    return f"{stored.format}, {stored.characters / limit:.0%} of {limit:,}"


def _strips(partitions: Sequence[PartitionView], width: int, letters: Letters) -> Iterator[RenderableType]:
    """From the committed offset to the highest completed one."""
    rows = [(one, highest) for one in partitions if (highest := one.work.highest_completed) is not None]
    names = [plain_text(f"{one.work.partition.topic}:{one.work.partition.partition}") for one, _ in rows]
    starts, ends = [f"{one.work.start:,}" for one, _ in rows], [f"{highest:,}" for _, highest in rows]
    widths = [max(map(len, column)) for column in (names, starts, ends)]
    room = max(_NARROWEST, width - sum(widths) - 5)
    yield Text.assemble(
        "from the committed offset to the highest completed one: ",
        *((f"{letters.of(cell)} {cell.value}  ", _COLOURS[cell]) for cell in Cell),
    )
    for name, start, end, (one, highest) in zip(names, starts, ends, rows, strict=True):
        line = Text(f"{name:<{widths[0]}} {start:>{widths[1]}} |", no_wrap=True)
        for cell, same in groupby(cells(one.work.known, one.work.start, highest, room)):
            line.append(letters.of(cell) * len(list(same)), _COLOURS[cell])
        yield line.append(f"| {end}")


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=name != "member")
    return table


# -- JSON


def objects(
    group: GroupView, partitions: Sequence[PartitionView], now: float, limit: int
) -> Iterator[dict[str, object]]:
    """One for the group, and one for each of ``partitions``."""
    yield group_object(group)
    for one in partitions:
        yield partition_object(group.name, one, now, limit)


def group_object(group: GroupView, *, is_sampled: bool = True) -> dict[str, object]:
    """A group with its totals. ``is_sampled``: whether it is known if the remaining work is exact."""
    fields: dict[str, object] = {
        "kind": "group",
        "group": group.name,
        "state": group.state.state,
        "type": group.state.type,
        "group_epoch": group.state.epoch,
        "assignment_epoch": group.state.assignment_epoch,
        "assignor": group.state.assignor,
        "members": [_member_object(member) for member in group.state.members],
        "lag": group.lag,
        "remaining": group.remaining,
    }
    if is_sampled:
        fields["remaining_is"] = _exactness(group.is_exact)
    return fields


def _member_object(member: GroupMember) -> dict[str, object]:
    is_told = member.target is not None
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "partitions": _names(member.partitions),
        "protocol": member.protocol,
        "epoch": member.epoch,
        "target": _names(member.target or ()) if is_told else None,
        "giving_away": _names(member.giving_away) if is_told else None,
        "waiting_for": _names(member.waiting_for) if is_told else None,
    }


def partition_object(group: str, one: PartitionView, now: float, limit: int) -> dict[str, object]:
    """A partition of a group."""
    work, stored, sampled = one.work, one.work.stored, one.sampled
    at, oldest = None if sampled is None else sampled.oldest_at, one.oldest_age(now)
    highest = work.highest_completed
    row = [] if highest is None else cells(work.known, work.start, highest, STRIP_IN_JSON)
    return {
        "kind": "partition",
        "group": group,
        "topic": work.partition.topic,
        "partition": work.partition.partition,
        "committed": work.committed,
        "begin": work.begin,
        "end": work.end,
        "lag": work.lag,
        "remaining": one.remaining,
        "remaining_is": _exactness(one.is_exact),
        "incomplete": work.incomplete,
        "unread": work.unread,
        "highest_completed": highest,
        "oldest_offset": work.oldest,
        "oldest_timestamp": None if at is None else iso_time(at),
        "oldest_age": None if oldest is None else round(oldest, 3),
        "positions_in": "database" if one.in_database else "kafka",
        "map_format": None if stored is None else stored.format,
        "map_characters": None if stored is None else stored.characters,
        "map_limit": None if one.in_database else limit,
        "map_share": None if stored is None or one.in_database else round(stored.characters / limit, 4),
        "map_problem": None if stored is None else stored.problem,
        "open": None if one.open is None else one.open.open,
        "member": None if one.member is None else one.member.member_id,
        "strip": "".join(ASCII.of(cell) for cell in row),
    }


def _exactness(is_exact: bool) -> str:
    return "exact" if is_exact else "upper bound"
