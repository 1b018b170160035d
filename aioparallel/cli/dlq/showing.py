"""What ``aioparallel dlq show`` prints."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator

from rich.console import Console

from aioparallel.cli.dlq.listing import Counts, json_summary, matching
from aioparallel.cli.dlq.opening import OpenTopic
from aioparallel.cli.dlq.reading import Read
from aioparallel.cli.dlq.selecting import DeadLetter, Kept, Selection
from aioparallel.cli.dlq.wording import age, as_json, iso_time, local_time, plain_text, readable
from aioparallel.delivery.letters import original_headers
from aioparallel.errors import ConfigurationError

__all__ = ["selected", "show_letters", "write_raw"]


async def selected(
    reads: AsyncIterator[Read], topic: OpenTopic, selection: Selection, *, everything: bool
) -> AsyncGenerator[DeadLetter, None]:
    """The letters to show. As they are read; or, with a number asked for, when all are read."""
    kept: Kept[DeadLetter] = Kept(selection.oldest, selection.newest)
    streams = not selection.has_number
    async for dead in matching(reads, topic, selection, Counts(), everything=everything):
        if streams:
            yield dead
        else:
            kept.take(dead.age, dead)
    for dead in kept.items():
        yield dead


async def show_letters(letters: AsyncIterator[DeadLetter], console: Console, *, as_lines: bool) -> int:
    """Print each, ``as_lines`` of JSON or for people; how many there were."""
    count = 0
    async for dead in letters:
        if as_lines:
            console.file.write(json.dumps(json_details(dead), ensure_ascii=False) + "\n")
        else:
            if count:
                console.print()
            console.print(details(dead, time.time()), markup=False, highlight=False, soft_wrap=True)
        count += 1
    return count


async def write_raw(letters: AsyncIterator[DeadLetter]) -> None:
    """Write the value of the one letter to standard output, byte by byte as it is.

    Raises ConfigurationError unless it is exactly one, and then writes nothing.
    """
    found: list[DeadLetter] = []
    async for dead in letters:
        found.append(dead)
        if len(found) > 1:
            break
    if len(found) != 1:
        how_many = "none matches" if not found else "more match"
        raise ConfigurationError(
            "--raw", how_many, "writes one value; select exactly one, with --partition and --offset"
        )
    sys.stdout.buffer.write(found[0].record.value or b"")
    sys.stdout.buffer.flush()


def details(dead: DeadLetter, now: float) -> str:
    """Everything about one letter."""
    record, letter = dead.record, dead.letter
    place = f"{record.topic}, partition {record.partition}, offset {record.offset}"
    lines = [f"{place}: {json_summary(dead)['state']}"]
    if letter is not None:
        origin = letter.origin
        lines += [
            f"  origin      {origin.topic}, partition {origin.partition}, offset {origin.offset}, "
            + ("without a timestamp" if origin.timestamp < 0 else f"written {local_time(origin.timestamp / 1000)}"),
            f"  failed      {local_time(letter.last.at)}, {age(now - letter.last.at)}; "
            f"first {local_time(letter.first.at)}",
            f"  attempts    {letter.attempts} in group {letter.group or '(unknown)'}",
            f"  error       {letter.last.type}: {letter.last.message}",
        ]
        if letter.traceback:
            lines += ["  traceback", indented(letter.traceback.rstrip())]
    if headers := original_headers(record.headers):
        lines.append("  headers")
        lines += [indented(f"{name}: {readable(value)}") for name, value in headers]
    for name, data in (("key", record.key), ("value", record.value)):
        size = "" if data is None else f"  ({len(data):,} bytes)"
        lines += [f"  {name}{size}", indented(readable(data))]
    return plain_text("\n".join(lines))


def indented(text: str) -> str:
    """Each line four columns in."""
    return "\n".join("    " + line for line in text.split("\n"))


def json_details(dead: DeadLetter) -> dict[str, object]:
    """Everything about one letter, for scripts: what list tells, and the rest."""
    record, letter = dead.record, dead.letter
    told = json_summary(dead)
    if letter is not None:
        told |= {"failed_first": iso_time(letter.first.at), "traceback": letter.traceback}
    told["timestamp"] = None if record.timestamp < 0 else iso_time(record.timestamp / 1000)
    told["headers"] = [[name, as_json(value)] for name, value in original_headers(record.headers)]
    told["value"] = as_json(record.value)
    return told
