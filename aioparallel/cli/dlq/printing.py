"""Formats a letter: as a row, in full, and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final, NamedTuple

from rich.table import Table
from rich.text import Text

from aioparallel.cli.console import age, counted, local_time, plain_text
from aioparallel.cli.dlq.selecting import Age, DeadLetter, Selection
from aioparallel.cli.formats import as_json, iso_time, name_as_json
from aioparallel.delivery.letters import Letter, original_headers
from aioparallel.records.record import readable_name

__all__ = [
    "Row",
    "details",
    "footer",
    "json_details",
    "json_summary",
    "readable",
    "row",
    "table",
]

DUMPED: Final = 512
"""Bytes of a binary value that are shown."""


class Row(NamedTuple):
    """A letter in the list. It has no value, so that many rows take little memory."""

    age: Age
    state: str
    attempts: str = ""
    origin: str = ""
    error: str = ""
    message: str = ""


def row(dead: DeadLetter) -> Row:
    """A row of the table. Of the error's name only the class is shown."""
    letter = dead.letter
    if letter is None:
        return Row(dead.age, dead.state)
    origin = f"{letter.origin.topic}-{letter.origin.partition}@{letter.origin.offset}"
    error = letter.last.type.rpartition(".")[2]
    of_delivery = "" if letter.deliveries is None else f" (delivery {letter.deliveries})"
    return Row(dead.age, dead.state, f"{letter.attempts}{of_delivery}", origin, error, letter.last.message)


def table(rows: list[Row], now: float, *, states: bool) -> Table:
    """The newest letter is at the bottom, next to the prompt. The message gets the remaining width."""
    shown = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for name in ("partition", "offset"):
        shown.add_column(name, justify="right", no_wrap=True)
    if states:
        shown.add_column("state", no_wrap=True)
    shown.add_column("failed", no_wrap=True)
    shown.add_column("attempts", justify="right", no_wrap=True)
    shown.add_column("origin", no_wrap=True)
    shown.add_column("error", no_wrap=True, overflow="ellipsis", max_width=32)
    shown.add_column("message", no_wrap=True, overflow="ellipsis", ratio=1, min_width=12)
    for (at, partition, offset), state, *rest in rows:
        cells = [str(partition), str(offset), *([state] * states), f"{local_time(at)}, {age(now - at)}", *rest]
        shown.add_row(*(Text(plain_text(cell, one_line=True)) for cell in cells))
    return shown


def footer(
    topic: str, states: Counter[str], errors: Counter[str], shown: int, selection: Selection, *, everything: bool
) -> list[str]:
    """Sentences with the counts by state and by error."""
    first = f"{topic}: {counted(states['open'], 'open letter')}"
    if selection.has_criteria:
        first += " that matches" if states["open"] == 1 else " that match"
    if everything:
        first += f", {states['settled']:,} settled"
    if len(errors) > 1:
        ranked = sorted(errors.items(), key=lambda found: (-found[1], found[0]))
        first += " (" + ", ".join(f"{count:,} {name}" for name, count in ranked[:10])
        first += f" and {len(errors) - 10} other types)" if len(errors) > 10 else ")"
    lines = [first]
    if shown < (states.total() if everything else states["open"]):
        if selection.has_number:
            lines.append(f"Shown: the {shown:,} {'newest' if selection.limit is None else 'oldest'}.")
        else:
            lines.append(f"Shown: the {shown:,} newest. --newest N shows more; --error, --since ... narrow it down.")
    if count := states["no letter"]:
        what = "record is no letter" if count == 1 else "records are no letters"
        lines.append(f"{count:,} {what}{'' if everything else '; --all shows them'}.")
    return [plain_text(line) for line in lines]


def details(dead: DeadLetter, now: float) -> str:
    """Everything about one letter, for people."""
    record, letter = dead.record, dead.letter
    lines = [f"{record.topic}, partition {record.partition}, offset {record.offset}: {dead.state}"]
    if letter is not None:
        origin, last = letter.origin, letter.last
        written = "without a timestamp" if origin.timestamp < 0 else f"written {local_time(origin.timestamp / 1000)}"
        lines += [
            f"  origin      {origin.topic}, partition {origin.partition}, offset {origin.offset}, {written}",
            f"  failed      {local_time(last.at)}, {age(now - last.at)}"
            + ("" if letter.is_of_broker else f"; first {local_time(letter.first.at)}"),
            f"  {'deliveries' if letter.is_of_broker else 'attempts  '}  {letter.attempts} in group "
            f"{letter.group or '(unknown)'}{_of_last_delivery(letter)}",
            f"  error       {last.type}: {last.message}",
        ]
        if dead.missing is not None:
            where = "read from its origin" if dead.is_completed else f"and cannot be read: {dead.gone}"
            lines.append(f"  not in it   {dead.missing}, {where}")
        if letter.traceback:
            lines += ["  traceback", indented(letter.traceback.rstrip())]
    if headers := original_headers(record.headers):
        lines += ["  headers", *(indented(f"{readable_name(name)}: {readable(value)}") for name, value in headers)]
    for name, data in (("key", record.key), ("value", record.value)):
        size = "" if data is None else f"  ({len(data):,} bytes)"
        lines += [f"  {name}{size}", indented(readable(data))]
    return plain_text("\n".join(lines))


def _of_last_delivery(letter: Letter) -> str:
    if letter.deliveries is None:
        return ""
    return f", in delivery {letter.deliveries}: those in earlier deliveries are not counted"


def indented(text: str) -> str:
    """Indent each line by four columns."""
    return "\n".join("    " + line for line in text.split("\n"))


def readable(data: bytes | None) -> str:
    """JSON indented, other UTF-8 text as it is, binary data as a dump of its first 512 bytes."""
    if data is None:
        return "(none)"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "\n".join(_dump(data))
    if "\x00" in text:
        return "\n".join(_dump(data))
    try:
        value = json.loads(text)
    except ValueError:
        return plain_text(text) or "(empty)"
    return plain_text(json.dumps(value, indent=2, ensure_ascii=False) if isinstance(value, dict | list) else text)


def _dump(data: bytes) -> Iterator[str]:
    for start in range(0, min(len(data), DUMPED), 16):
        line = data[start : start + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        yield f"{start:08x}  {line.hex(' '):<47}  {shown}"
    if len(data) > DUMPED:
        yield f"... {len(data):,} bytes in all; --raw writes them out"


def json_summary(dead: DeadLetter) -> dict[str, object]:
    """A letter in the list for scripts. Names of fields are a public interface."""
    record, letter = dead.record, dead.letter
    summary: dict[str, object] = {
        "partition": record.partition,
        "offset": record.offset,
        "state": dead.state,
        "key": as_json(record.key),
    }
    if letter is not None:
        summary |= {
            "failed": iso_time(letter.last.at),
            "attempts": letter.attempts,
            "group": letter.group,
            "origin": letter.origin._asdict(),
            "error": {"type": letter.last.type, "message": letter.last.message},
        }
        if letter.deliveries is not None:
            summary["deliveries"] = letter.deliveries
        if dead.missing is not None:
            summary["left_out"] = asdict(dead.missing)
    return summary


def json_details(dead: DeadLetter) -> dict[str, object]:
    """Everything about a letter for scripts."""
    record, letter = dead.record, dead.letter
    fields = json_summary(dead)
    if letter is not None:
        fields |= {"failed_first": iso_time(letter.first.at), "traceback": letter.traceback}
        if dead.missing is not None:
            fields |= {"completed": dead.is_completed, "gone": dead.gone or None}
    fields["timestamp"] = None if record.timestamp < 0 else iso_time(record.timestamp / 1000)
    fields["headers"] = [[name_as_json(name), as_json(value)] for name, value in original_headers(record.headers)]
    fields["value"] = as_json(record.value)
    return fields
