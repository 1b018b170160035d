"""Plans a change, prints it, and carries it out under a fence.

A group with members is refused: they would overwrite the change with their next commit, or would not notice it. The
fence has four parts: ask for members; compare what is stored with what was planned from; commit, which the broker
refuses if a member has joined since; read back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Final, NamedTuple

from aioparallel.cli.cluster import Cluster
from aioparallel.cli.console import counted, local_time, make_console, plain_text, say
from aioparallel.cli.database import Database
from aioparallel.cli.groups.reading import Connected, connected
from aioparallel.cli.offsets.commands import Doing, Rewinding
from aioparallel.cli.offsets.places import parse_places
from aioparallel.cli.offsets.planning import (
    Change,
    Current,
    Refused,
    redo_change,
    rewind_change,
    shown_ranges,
    skip_change,
)
from aioparallel.cli.offsets.stored import PositionStore, members_text, position_store
from aioparallel.cli.reading_client import REQUEST_TIMEOUT, offset_ranges
from aioparallel.group.client import Committed, Span
from aioparallel.group.leader_epochs import UNKNOWN, epoch_of
from aioparallel.group.unreadable import read_past
from aioparallel.offsets.encoding import format_of
from aioparallel.records.errors import AioparallelError, ConfigurationError
from aioparallel.records.record import TopicPartition

__all__ = ["Opened", "carry_out", "current", "opened", "redo", "require_idle", "rewind", "skip"]

_READ: Final = 10.0
"""Seconds for reading the records that are skipped."""
_READ_AT_MOST: Final = 10
"""Records that are skipped and read, to be shown."""


class Opened(NamedTuple):
    """A group and where its positions are."""

    group: str
    to: Connected
    store: PositionStore


@asynccontextmanager
async def opened(group: str, where: Cluster, stored_in: Database) -> AsyncIterator[Opened]:
    """Connect. Raises Refused for a share group."""
    async with connected(where) as to:
        if any(one.name == group and one.type.lower() == "share" for one in await to.admin.list_groups()):
            raise Refused(
                f"{group!r} is a share group, which commits no offsets: raise Reject in the handler to end a record; "
                f"`aioparallel share reset {group}` sets where the group starts"
            )
        yield Opened(group, to, await position_store(to, group, stored_in))


async def skip(group: str, texts: Sequence[str], how: Doing, where: Cluster, stored_in: Database) -> None:
    """``aioparallel offsets skip``."""
    places = parse_places(texts)
    async with opened(group, where, stored_in) as one:
        now = await current(one, places)
        epochs = await _look_at(one, now, places, where.skipped)
        changes = [
            skip_change(now[place], offsets, partial(_epoch, epochs, place)) for place, offsets in places.items()
        ]
        await carry_out(one, changes, how, SKIP_VIA)


def _epoch(epochs: Mapping[tuple[TopicPartition, int], int], place: TopicPartition, offset: int) -> int:
    return epochs.get((place, offset), UNKNOWN)


async def redo(group: str, texts: Sequence[str], how: Doing, where: Cluster, stored_in: Database) -> None:
    """``aioparallel offsets redo``."""
    places = parse_places(texts)
    async with opened(group, where, stored_in) as one:
        now = await current(one, places)
        await carry_out(one, [redo_change(now[place], offsets) for place, offsets in places.items()], how)


async def rewind(group: str, to: Rewinding, how: Doing, where: Cluster, stored_in: Database) -> None:
    """``aioparallel offsets rewind``."""
    to.check()
    async with opened(group, where, stored_in) as one:
        found = [place for place in await one.store.read(None) if to.includes(place)]
        if not found:
            raise Refused(f"group {group!r} has committed nothing" + (" there" if to.topic else ""))
        if missing := sorted(set(to.topic) - {place.topic for place in found}):
            raise Refused(f"group {group!r} has committed nothing in {', '.join(missing)}")
        if numbers := sorted(set(to.partition) - {place.partition for place in found}):
            raise Refused(f"group {group!r} has committed nothing in partition {', '.join(map(str, numbers))}")
        if to.to_offset is not None and len(found) > 1:
            raise ConfigurationError("to_offset", to.to_offset, "needs one partition: give --topic and --partition")
        now = await current(one, found)
        targets = await _targets(one, now, to)
        changes = [rewind_change(now[place], target) for place, target in sorted(targets.items())]
        await carry_out(one, changes, how)


async def _targets(one: Opened, now: Mapping[TopicPartition, Current], to: Rewinding) -> dict[TopicPartition, int]:
    """Where to go back to. Partitions without a record that late are left out."""
    if to.to_offset is not None:
        return dict.fromkeys(now, to.to_offset)
    if to.by is not None:
        return {place: max(0, here.position.offset - to.by) for place, here in now.items() if here.position is not None}
    # Negative times have other meanings in Kafka: -1 is the end of the log.
    times = dict.fromkeys(now, round(max(0.0, to.to or 0.0) * 1000))
    found = await one.to.client.offsets_for_times(times, REQUEST_TIMEOUT)
    if later := sorted(place for place in now if found.get(place) is None):
        say(f"No record is that late in {', '.join(map(str, later))}: nothing changes there.")
    return {place: offset for place, offset in found.items() if offset is not None}


async def current(one: Opened, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Current]:
    """These partitions as they are. Raises Refused if one does not exist, or has no leader."""
    exist = await one.to.client.partitions({place.topic for place in partitions}, REQUEST_TIMEOUT)
    if missing := sorted(set(partitions) - exist):
        raise Refused(f"{missing[0]} does not exist")
    # Positions before ends: a position that is above the end of its log is a finding.
    positions = await one.store.read(partitions)
    ranges = await offset_ranges(one.to.admin, partitions)
    if missing := sorted(set(partitions) - ranges.keys()):
        raise Refused(f"{missing[0]} has no leader, so nobody can be asked about its log")
    return {
        place: Current(place, positions.get(place), *ranges[place], one.store.limit) for place in sorted(partitions)
    }


async def _look_at(
    one: Opened,
    now: Mapping[TopicPartition, Current],
    places: Mapping[TopicPartition, Sequence[int]],
    skipped: Collection[tuple[str, int, int]],
) -> dict[tuple[TopicPartition, int], int]:
    """Read the first records that are skipped, and print when they were written. Returns their leader epochs. Records
    that cannot be read may be skipped as well: that may be why they are."""
    stable = await one.to.client.end_offsets(places, REQUEST_TIMEOUT)
    spans: dict[TopicPartition, Span | list[Span]] = {}
    for place, offsets in places.items():
        wanted = [offset for offset in (*offsets[:_READ_AT_MOST], offsets[-1]) if offset >= now[place].begin]
        spans[place] = [Span(offset, offset + 1) for offset in sorted(set(wanted)) if offset < stable[place]]
    spans = {place: some for place, some in spans.items() if some}
    epochs: dict[tuple[TopicPartition, int], int] = {}
    found: set[tuple[TopicPartition, int]] = set()
    try:
        async with asyncio.timeout(_READ), aclosing(read_past(one.to.client, spans, skipped)) as reads:
            async for fetched in reads:
                for record in fetched.records:
                    at = (fetched.partition, record.offset)
                    found.add(at)
                    epochs[at] = epoch_of(fetched.leader_epochs, record.offset)
                    when = "" if record.timestamp < 0 else f", written {local_time(record.timestamp / 1000)}"
                    say(f"{_text(fetched.partition)}:{record.offset}: {_size(record.value)}{when}")
    except (AioparallelError, TimeoutError) as error:
        say(f"WARNING not all of these records could be read: {str(error) or 'no answer in time'}")
    else:
        for place, some in spans.items():
            for span in some if isinstance(some, list) else [some]:
                if (place, span.start) not in found:
                    what = "is no committed record: a marker of a transaction, or gone"
                    say(f"WARNING {_text(place)}:{span.start} {what}")
    return epochs


def _size(value: bytes | None) -> str:
    return "a record without a value" if value is None else f"a record with {counted(len(value), 'byte')}"


# -- carrying out


SKIP_VIA: Final = (
    ". Or let a member that runs skip the records: --via, with an OffsetsEndpoint in the extensions of its consumer"
)
ONLY_STOPPED: Final = (
    ". A running group cannot do this: its members keep what they have done in memory, and run a record that is done "
    "again only after a new start"
)


async def require_idle(one: Opened, otherwise: str = ONLY_STOPPED) -> None:
    """Raise Refused if the group has members. ``otherwise``: what else the user may do, or why nothing."""
    state = await one.to.admin.describe_group(one.group)
    if state.members:
        raise Refused(
            f"group {one.group!r} has {counted(len(state.members), 'member')}: {members_text(state)}. Stop all members "
            f"first; static members are members until their session.timeout.ms is over{otherwise}"
        )


async def carry_out(one: Opened, changes: Sequence[Change], how: Doing, otherwise: str = ONLY_STOPPED) -> None:
    """Print the changes and, with ``execute``, make them. Raises Refused."""
    console = make_console()
    for change in changes:
        for line in described(change):
            console.print(plain_text(line), highlight=False, markup=False, soft_wrap=True)
    needed = [change for change in changes if not change.is_none]
    if not needed:
        say("Nothing changes.")
        return
    if not how.execute:
        try:
            await require_idle(one, otherwise)
        except Refused as error:
            say(f"WARNING --execute would be refused now: {error}")
        say("Nothing was changed: this was a dry run. --execute does it.")
        return
    await require_idle(one, otherwise)
    ids = await one.to.client.topic_ids({change.partition.topic for change in needed}, REQUEST_TIMEOUT)
    after = {
        change.partition: change.after._replace(topic_id=ids.get(change.partition.topic, b"")) for change in needed
    }
    await one.store.write({change.partition: change.before for change in needed}, after)
    say(f"Committed for {counted(len(needed), 'partition')} of group {one.group}, and read back.")


def described(change: Change) -> list[str]:
    """What a change does, for people."""
    place = _text(change.partition)
    if change.is_none:
        return [f"{place}: no change", *(f"  {note}" for note in change.notes)]
    before = "nothing" if change.before is None else _position_text(change.before)
    lines = [f"{place}: {before} -> {_position_text(change.after)}"]
    if change.difference is not None:
        again, skipped = change.difference
        lines += [
            f"  {_count(again)} would run again" + (f": {shown_ranges(again)}" if again else ""),
            f"  {_count(skipped)} would not run" + (f": {shown_ranges(skipped)}" if skipped else ""),
        ]
    return [*lines, *(f"  {note}" for note in change.notes)]


def _position_text(position: Committed) -> str:
    if not position.metadata:
        return f"offset {position.offset} without a map"
    name: str | None = format_of(position.metadata)
    what = "other metadata" if name is None else f"a map ({name})"
    return f"offset {position.offset} with {what} of {counted(len(position.metadata), 'character')}"


def _count(ranges: Sequence[range]) -> str:
    count = sum(map(len, ranges))
    return counted(count, "offset") if count else "no offset"


def _text(place: TopicPartition) -> str:
    return f"{place.topic}:{place.partition}"
