"""``aioparallel offsets export`` and ``import``: positions as JSON. Names of fields are a public interface."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from aioparallel.cli.cluster import Cluster
from aioparallel.cli.console import counted, say
from aioparallel.cli.database import Database
from aioparallel.cli.formats import iso_time
from aioparallel.cli.offsets.changing import carry_out, current, opened, require_idle
from aioparallel.cli.offsets.commands import Doing
from aioparallel.cli.offsets.planning import Refused, import_change
from aioparallel.cli.reading_client import REQUEST_TIMEOUT
from aioparallel.group.client import Committed
from aioparallel.group.leader_epochs import UNKNOWN
from aioparallel.offsets.encoding import format_of
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition

__all__ = ["Exported", "as_document", "export", "import_file", "parse_document"]

_VERSION: Final = 1
_LAST_EPOCH: Final = 2**31 - 1


class Exported(NamedTuple):
    """A position in a file. ``topic_id``: in hexadecimal; empty if unknown."""

    position: Committed
    topic_id: str


def as_document(group: str, positions: dict[TopicPartition, Exported], now: float) -> dict[str, object]:
    """The content of a file."""
    return {
        "version": _VERSION,
        "group": group,
        "exported": iso_time(now),
        "positions": [
            {
                "topic": place.topic,
                "partition": place.partition,
                "topic_id": one.topic_id or None,
                "offset": one.position.offset,
                "leader_epoch": None if one.position.leader_epoch == UNKNOWN else one.position.leader_epoch,
                "map_format": format_of(one.position.metadata),
                "metadata": one.position.metadata,
            }
            for place, one in sorted(positions.items())
        ],
    }


def parse_document(text: str) -> dict[TopicPartition, Exported]:
    """The positions of a file. Raises ConfigurationError that says what is wrong."""
    try:
        document: Any = json.loads(text)
    except ValueError as error:
        raise ConfigurationError("FILE", "...", f"is no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        raise ConfigurationError("FILE", "...", f"must be written by `aioparallel offsets export`, version {_VERSION}")
    found: dict[TopicPartition, Exported] = {}
    entries = document.get("positions")
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        one = _entry(entry, number)
        if one[0] in found:
            raise ConfigurationError("FILE", str(one[0]), "is there twice")
        found[one[0]] = one[1]
    if not found:
        raise ConfigurationError("FILE", "...", "has no positions")
    return found


def _entry(entry: object, number: int) -> tuple[TopicPartition, Exported]:
    kinds = {"topic": str, "partition": int, "offset": int, "metadata": str}
    if not isinstance(entry, dict):
        raise ConfigurationError("FILE", entry, f"positions[{number}] must be an object")
    for name, kind in kinds.items():
        value = entry.get(name)
        if not isinstance(value, kind) or isinstance(value, bool) or (kind is int and cast("int", value) < 0):
            what = "a text" if kind is str else "a number from 0 on"
            raise ConfigurationError("FILE", value, f"positions[{number}].{name} must be {what}")
    epoch = UNKNOWN if entry.get("leader_epoch") is None else entry["leader_epoch"]
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not UNKNOWN <= epoch <= _LAST_EPOCH:
        raise ConfigurationError("FILE", epoch, f"positions[{number}].leader_epoch must be an int32 from 0 on, or null")
    try:
        entry["metadata"].encode()
    except UnicodeEncodeError:
        raise ConfigurationError("FILE", "...", f"positions[{number}].metadata has half a surrogate pair") from None
    position = Committed(entry["offset"], entry["metadata"], epoch)
    return TopicPartition(entry["topic"], entry["partition"]), Exported(position, str(entry.get("topic_id") or ""))


async def export(group: str, file: Path | None, where: Cluster, stored_in: Database) -> None:
    """``aioparallel offsets export``."""
    if file is not None and await asyncio.to_thread(file.exists):
        raise ConfigurationError(
            "FILE", str(file), "exists already: give another name, or redirect standard output to it"
        )
    async with opened(group, where, stored_in) as one:
        try:
            await require_idle(one)
        except Refused as error:
            say(f"WARNING these positions change: {error}")
        positions = await one.store.read(None)
        if not positions:
            raise Refused(f"group {group!r} has no positions")
        ids = await one.to.client.topic_ids({place.topic for place in positions}, REQUEST_TIMEOUT)
    exported = {place: Exported(found, ids.get(place.topic, b"").hex()) for place, found in positions.items()}
    text = json.dumps(as_document(group, exported, time.time()), indent=1, ensure_ascii=True) + "\n"
    if file is None:
        sys.stdout.write(text)
    else:
        await asyncio.to_thread(file.write_text, text)
        say(f"Wrote {counted(len(positions), 'position')} of group {group} to {file}.")


async def import_file(group: str, file: Path, how: Doing, where: Cluster, stored_in: Database) -> None:
    """``aioparallel offsets import``."""
    try:
        text = await asyncio.to_thread(file.read_text, "utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError("FILE", str(file), f"is no JSON: {error}") from None
    positions = parse_document(text)
    async with opened(group, where, stored_in) as one:
        now = await current(one, positions)
        ids = await one.to.client.topic_ids({place.topic for place in positions}, REQUEST_TIMEOUT)
        for place, found in positions.items():
            here = ids.get(place.topic, b"").hex()
            if here and found.topic_id and here != found.topic_id:
                raise Refused(
                    f"{place.topic} was deleted and created again, or is in another cluster, since the positions were "
                    "exported: they would apply to other records"
                )
        changes = [import_change(now[place], found.position) for place, found in sorted(positions.items())]
        await carry_out(one, changes, how)
