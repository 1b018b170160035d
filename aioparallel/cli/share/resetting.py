"""``aioparallel share configure``, ``reset`` and ``forget``. The broker itself refuses the last two while the group has
members."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from aioparallel.cli.cluster import Cluster
from aioparallel.cli.console import counted, make_console, plain_text, say
from aioparallel.cli.parsing import name_and_value
from aioparallel.cli.reading_client import REQUEST_TIMEOUT, offset_ranges
from aioparallel.cli.share.commands import Doing, Resetting, Target
from aioparallel.cli.share.reading import Connected, connected, existing
from aioparallel.clients.aiokafka.admin import from_later_kafka
from aioparallel.clients.aiokafka.share_admin import ShareGroup, ShareOffset
from aioparallel.config.unknown_options import did_you_mean, meant
from aioparallel.records.errors import ClientError, ConfigurationError, NotAuthorized, TopicNotFound
from aioparallel.records.record import TopicPartition

__all__ = ["Move", "configure", "forget", "moves", "reset"]

_NAMED: Final = 5
"""Members that are named in a message."""


class Move(NamedTuple):
    """A new start offset. ``end``: of the log."""

    partition: TopicPartition
    before: ShareOffset
    after: int
    end: int

    @property
    def skipped(self) -> int:
        """Offsets that have not ended and are passed over, at most. The start offset may be an older one."""
        start, lag = self.before
        passed = 0 if start is None else max(0, self.after - start)
        return passed if lag is None else min(passed, lag)

    def __str__(self) -> str:
        before = "nothing read" if self.before.start is None else f"offset {self.before.start:,}"
        again = counted(max(0, self.end - self.after), "offset")
        text = f"{self.partition.topic}:{self.partition.partition}: {before} -> offset {self.after:,}: {again} to read"
        return f"{text}, at most {counted(self.skipped, 'offset')} skipped" if self.skipped else text


async def configure(group: str, texts: Sequence[str], where: Cluster) -> None:
    """``aioparallel share configure``."""
    if not texts:
        raise ConfigurationError("CONFIGS", None, "must be given, as in share.auto.offset.reset=earliest")
    allowed = "must be NAME=VALUE, as in share.auto.offset.reset=earliest"
    given = dict(name_and_value("CONFIGS", text, allowed) for text in texts)
    async with connected(where) as to:
        try:
            exists = await to.admin.describe(group) is not None
        except NotAuthorized:  # it needs another right
            exists = True
        try:
            await to.admin.set_group_configs(group, {name: value or None for name, value in given.items()})
        except ClientError as error:
            raise ClientError(f"{error}{await _hint(to, group, given, str(error))}") from error
        now = await to.admin.group_configs(group)
    for name in given:
        _print(f"{name}={now.get(name, '')}")
    if not exists and any(given.values()):
        names = " ".join(f"{name}=" for name in given)
        say(
            f"There is no share group {group} yet: this applies once a member joins. If the name is wrong, "
            f"`aioparallel share configure {group} {names}` sets the default again; `aioparallel share list` names the "
            "groups that exist."
        )


async def _hint(to: Connected, group: str, given: Collection[str], refusal: str) -> str:
    """What helps with this refusal: a similar name, or the limits that it names."""
    known = await to.admin.group_configs(group)
    for name in given:
        if name not in known and name in refusal:
            if hint := from_later_kafka(refusal):
                return hint
            near = meant(name, [one for one in known if one.startswith("share.")])
            return f"; {did_you_mean(near)}" if near else ""
    limits = {name: await to.admin.broker_config(name) for name in re.findall(r"\bgroup\.share\.[a-z.]*[a-z]", refusal)}
    texts = [f"{name}={value}" for name, value in limits.items() if value is not None]
    return f"; the brokers have {', '.join(texts)}" if texts else ""


async def reset(group: str, to: Resetting, how: Doing, where: Cluster) -> None:
    """``aioparallel share reset``."""
    target = to.target()
    async with connected(where) as connection:
        found = await existing(connection, group)
        offsets = await connection.admin.offsets(group)
        places = await _chosen(connection, group, offsets, to)
        planned = await moves(connection, places, offsets, target)
        for one in planned:
            _print(str(one))
        if not _may_change(found, how):
            return
        await connection.admin.set_starts(group, {one.partition: one.after for one in planned})
    say(f"Set the start offset of {counted(len(planned), 'partition')} of share group {group}.")


async def forget(group: str, topics: Sequence[str], how: Doing, where: Cluster) -> None:
    """``aioparallel share forget``."""
    if not topics:
        raise ConfigurationError("TOPICS", None, "must be given")
    async with connected(where) as connection:
        found = await existing(connection, group)
        offsets = await connection.admin.offsets(group)
        known = {place.topic for place in offsets}
        if missing := sorted(set(topics) - known):
            raise ClientError(_reads_none(group, missing, known))
        for place, offset in sorted(offsets.items()):
            if place.topic in topics:
                start = "nothing read" if offset.start is None else f"start offset {offset.start:,}"
                _print(f"{place.topic}:{place.partition}: {start} is deleted")
        if not _may_change(found, how):
            return
        await connection.admin.delete_offsets(group, topics)
    say(f"Share group {group} has forgotten {', '.join(topics)}.")


async def _chosen(
    to: Connected, group: str, offsets: Collection[TopicPartition], which: Resetting
) -> set[TopicPartition]:
    """The partitions to reset. Raises ClientError if there are none."""
    if not offsets and not which.topic:
        raise ClientError(f"share group {group!r} has read nothing yet; --topic names a topic to start in")
    topics = set(which.topic) or {place.topic for place in offsets}
    exist = await to.client.partitions(topics, REQUEST_TIMEOUT)
    if missing := topics - {place.topic for place in exist}:
        if which.topic:
            raise TopicNotFound(missing, to.servers)
        say(f"WARNING {', '.join(sorted(missing))} no longer exists; `aioparallel share forget` deletes its offsets")
    chosen = {place for place in exist if which.includes(place)}
    if numbers := sorted(set(which.partition) - {place.partition for place in chosen}):
        highest = max(place.partition for place in exist)
        raise ConfigurationError("partition", numbers[0], f"{which.topic[0]} has the partitions 0 to {highest}")
    return chosen


async def moves(
    to: Connected, places: Collection[TopicPartition], offsets: Mapping[TopicPartition, ShareOffset], target: Target
) -> list[Move]:
    """The new start offsets. Partitions without a leader are left out, with a warning."""
    ranges = await offset_ranges(to.admin, places)
    times: Mapping[TopicPartition, int | None] = {}
    if isinstance(target, float) and ranges:
        # Negative times have other meanings in Kafka: -1 is the end of the log.
        wanted = dict.fromkeys(ranges, round(max(0.0, target) * 1000))
        times = await to.client.offsets_for_times(wanted, REQUEST_TIMEOUT)
    planned = []
    for place, (begin, end) in sorted(ranges.items()):
        if target == "earliest":
            after = begin
        elif target == "latest" or (found := times.get(place)) is None:
            after = end  # also if no record is that late
        else:
            after = found
        planned.append(Move(place, offsets.get(place, ShareOffset(None, None)), after, end))
    if not planned:
        raise ClientError("no partition has a leader, so none can be asked about its log")
    return planned


def _may_change(group: ShareGroup, how: Doing) -> bool:
    """Whether to go on. Raises ClientError if the group has members."""
    refused = _members_text(group) if group.members else ""
    if how.execute and refused:
        raise ClientError(refused)
    if not how.execute:
        if refused:
            say(f"WARNING --execute would be refused now: {refused}")
        say("Nothing was changed: this was a dry run. --execute does it.")
    return how.execute


def _members_text(group: ShareGroup) -> str:
    found = Counter(f"{one.client_id} at {one.host}" for one in group.members)
    names = [name if count == 1 else f"{name} ({count} times)" for name, count in found.items()]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"share group {group.name!r} has {counted(len(group.members), 'member')}: {', '.join(names[:_NAMED])}{more}. "
        "Stop all members first. A killed one is a member until its session ends (share.session.timeout.ms, 45 s)"
    )


def _reads_none(group: str, missing: Sequence[str], known: Collection[str]) -> str:
    reads = f"it knows {', '.join(sorted(known))}" if known else "it knows no topic"
    return f"share group {group!r} knows nothing of {', '.join(missing)}; {reads}"


def _print(line: str) -> None:
    make_console().print(plain_text(line), highlight=False, markup=False, soft_wrap=True)
