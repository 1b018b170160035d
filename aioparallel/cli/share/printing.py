"""Share groups as tables for people and as JSON for scripts. Names of JSON fields are a public interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aioparallel.cli.console import counted, plain_text
from aioparallel.cli.share.reading import GroupView, PartitionView

__all__ = ["list_table", "objects", "shown"]

_CONFIGS: Final[Mapping[str, str]] = {
    "share.delivery.count.limit": "deliveries of a record at most",
    "share.record.lock.duration.ms": "lock of a record",
    "share.renew.acknowledge.enable": "locks can be renewed",
    "share.partition.max.record.locks": "offsets from the first unfinished to the last acquired of a partition at most",
    "share.auto.offset.reset": "new partitions start at",
    "share.isolation.level": "isolation level",
    "share.session.timeout.ms": "session of a member",
    "errors.deadletterqueue.topic.name": "the brokers' dead letters go to",
    "errors.deadletterqueue.copy.record.enable": "with key and value",
}
"""The configs that are shown, and what they are."""
_PREFIXES: Final = ("share.", "errors.")
"""Others are of groups of other types."""

_UNKNOWN: Final = (
    "- : not known to the brokers yet. They count once a record of the partition has ended: not while the first ones "
    "run, however long"
)


def list_table(groups: Sequence[GroupView]) -> Table:
    """A row for each group."""
    table = _table("group", "state", "members", "topics", "lag")
    for one in groups:
        topics = sorted({place.partition.topic for place in one.partitions})
        numbers = (f"{len(one.group.members):,}", plain_text(", ".join(topics)) or "-", _lag(one))
        table.add_row(plain_text(one.group.name), one.group.state, *numbers)
    return table


def shown(view: GroupView) -> RenderableType:
    """The group, its configuration, its members, and a row for each partition."""
    group = view.group
    parts: list[RenderableType] = [
        Text.assemble(
            (plain_text(group.name), "bold"),
            f": {group.state}, share group, {counted(len(group.members), 'member')}; lag ",
            (_lag(view), "bold"),
        )
    ]
    parts += [
        Text(plain_text(f"  {name}: {_value(config, value)}"))
        for config, name in _CONFIGS.items()
        if (value := view.configs.get(config)) is not None and _is_worth_it(config, view.configs)
    ]
    for member in group.members:
        places = ", ".join(f"{one.topic}:{one.partition}" for one in member.partitions) or "no partitions"
        parts.append(Text(plain_text(f"  {member.client_id} at {member.host}, {member.member_id}: {places}")))
    if view.partitions:
        table = _table("partition", "start offset", "end", "lag", "members")
        for one in view.partitions:
            table.add_row(
                plain_text(f"{one.partition.topic}:{one.partition.partition}"),
                _number(one.offset.start),
                _number(one.end),
                _number(one.lag),
                f"{len(one.members):,}",
            )
        parts += ["", table]
        if any(one.lag is None for one in view.partitions):
            parts.append(Text(_UNKNOWN, style="dim"))
    elif group.state == "Dead":
        parts.append(Text("  No member has joined it yet: there is its configuration only."))
    else:
        parts.append(Text("  It has read nothing yet."))
    return Group(*parts)


def objects(view: GroupView, *, with_partitions: bool = True) -> Iterator[dict[str, object]]:
    """One for the group, and one for each partition."""
    group = view.group
    yield {
        "kind": "group",
        "group": group.name,
        "state": group.state,
        "type": "share",
        "assignor": group.assignor,
        "members": [
            {
                "member_id": one.member_id,
                "client_id": one.client_id,
                "host": one.host,
                "topics": list(one.topics),
                "partitions": [f"{place.topic}:{place.partition}" for place in one.partitions],
            }
            for one in group.members
        ],
        "topics": sorted({one.partition.topic for one in view.partitions}),
        "lag": view.lag,
        "configs": {name: value for name, value in sorted(view.configs.items()) if name.startswith(_PREFIXES)},
    }
    for one in view.partitions if with_partitions else ():
        yield _partition_object(group.name, one)


def _partition_object(group: str, one: PartitionView) -> dict[str, object]:
    return {
        "kind": "partition",
        "group": group,
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "start_offset": one.offset.start,
        "end": one.end,
        "lag": one.lag,
        "members": [member.member_id for member in one.members],
    }


def _is_worth_it(config: str, configs: Mapping[str, str]) -> bool:
    """Whether it says something: the brokers' dead letters are off by default."""
    return not config.startswith("errors.") or bool(configs.get("errors.deadletterqueue.topic.name"))


def _value(config: str, value: str) -> str:
    if config.endswith(".ms") and value.isdigit():
        return f"{int(value) / 1000:g} s"
    return {"true": "yes", "false": "no"}.get(value, value)


def _lag(view: GroupView) -> str:
    if not view.unknown:
        return f"{view.known_lag:,}"
    if view.unknown == len(view.partitions):
        return "unknown"
    return f"{view.known_lag:,}, and unknown in {counted(view.unknown, 'partition')}"


def _number(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=name != "topics")
    return table
