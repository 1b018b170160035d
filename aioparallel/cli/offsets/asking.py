"""``aioparallel offsets skip --via``: asks the members of a running group to skip offsets themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from aioparallel.cli.console import counted, say
from aioparallel.cli.offsets.commands import Doing, Via
from aioparallel.cli.offsets.places import parse_places
from aioparallel.cli.offsets.planning import Refused
from aioparallel.control.calling import EndpointRefused, Member
from aioparallel.records.record import TopicPartition
from aioparallel.records.skipped import FoundAs, Skipped

__all__ = ["skip_via"]

_SHOWN: Final = 20
"""Partitions or offsets that are listed one by one."""
_WHERE: Final[Mapping[FoundAs, str]] = {
    "complete": "complete already",
    "no record": "there is no record",
    "not read": "not fetched yet",
    "buffered": "waits behind others",
    "parked": "waits for its next attempt",
    "in flight": "its handler runs, or that of its batch",
    "producing": "its outputs or its dead letter are being sent",
}


async def skip_via(group: str, texts: Sequence[str], how: Doing, via: Via) -> None:
    """Skip these places through the members at ``via``. Everything is checked before the first is skipped."""
    places, token = parse_places(texts), via.token()
    members = [Member(url, token) for url in dict.fromkeys(via.via)]
    for member in members:
        if member.is_readable:
            say(f"WARNING {member.url} is not encrypted: others in the network can read the token")
    holding = await _find(group, places, members)
    for place, offsets in places.items():
        found = await holding[place].skip(place, offsets, execute=False)
        if not how.execute:
            _say(place, found, "would be skipped", "would not be skipped")
    if not how.execute:
        say("Nothing was changed: this was a dry run. --execute does it.")
        return
    done: list[TopicPartition] = []
    changed: set[int] = set()
    for place, offsets in places.items():
        try:
            found = await holding[place].skip(place, offsets, execute=True)
        except EndpointRefused as error:
            raise Refused(f"{error}{_done(done)}") from error
        _say(place, found, "skipped", "not skipped")
        done.append(place)
        if any(one.is_skipped for one in found):
            changed.add(id(holding[place]))
    say(f"Committed by {counted(len(changed), 'member')} of group {group}." if changed else "Nothing was changed.")


async def _find(
    group: str, places: Mapping[TopicPartition, Sequence[int]], members: Sequence[Member]
) -> dict[TopicPartition, Member]:
    """The member that has each partition. Raises Refused with what each of them has."""
    holding: dict[TopicPartition, Member] = {}
    answers: list[str] = []
    has_answer = False
    for member in members:
        try:
            name, held = await member.partitions()
        except EndpointRefused as error:
            answers.append(str(error))
            continue
        has_answer = True
        if name != group:
            answers.append(f"{member.url}: it is a member of group {name!r}")
            continue
        holding |= {place: member for place in held if place in places and place not in holding}
        answers.append(f"{member.url}: it has {_listed(held) or 'no partition'}")
    if missing := sorted(places.keys() - holding.keys()):
        asked = "".join(f"\n  {one}" for one in answers)
        nobody = "none of the members that answered has" if has_answer else "no member can be asked for"
        raise Refused(f"{nobody} {_listed(missing)} of group {group!r}:{asked}")
    return holding


def _listed(partitions: Sequence[TopicPartition]) -> str:
    names = [f"{one.topic}:{one.partition}" for one in partitions[:_SHOWN]]
    more = len(partitions) - _SHOWN
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _say(place: TopicPartition, found: Sequence[Skipped], yes: str, no: str) -> None:
    for one in found[:_SHOWN]:
        end = "" if one.was in ("complete", "no record") else f" -> {yes if one.is_skipped else no}"
        say(f"{place.topic}:{place.partition}:{one.offset}: {_WHERE.get(one.was, one.was)}{end}")
    if len(found) > _SHOWN:
        say(f"{place.topic}:{place.partition}: and {len(found) - _SHOWN:,} more offsets")


def _done(done: Sequence[TopicPartition]) -> str:
    return f". Skipped all the same: {_listed(done)}" if done else ""
