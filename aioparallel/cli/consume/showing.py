"""Formats records: a line for people, an object for scripts, or the value alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from rich.text import Text

from aioparallel.cli.console import local_time, make_console, plain_text
from aioparallel.cli.consume.command import Format
from aioparallel.cli.formats import as_json, iso_time, name_as_json
from aioparallel.records.record import Record, readable_name

__all__ = ["as_object", "as_text", "printer"]


def printer(how: Format) -> Callable[[Record], None]:
    """A function that prints a record."""
    if how.values:
        return _write_value
    console = make_console()
    if how.as_json:
        return lambda record: _write_line(json.dumps(as_object(record), ensure_ascii=False))
    return lambda record: console.print(as_text(record), soft_wrap=True)


def as_text(record: Record) -> Text:
    """Place, time, key, value and headers on one line."""
    place = f"{record.topic}-{record.partition}@{record.offset}"
    time = "no timestamp" if record.timestamp < 0 else local_time(record.timestamp / 1000)
    line = Text.assemble((f"{place}  {time}  ", "dim"), (_readable(record.key), "bold"), "  ", _readable(record.value))
    for name, value in record.headers:
        line.append(f"  {plain_text(readable_name(name), one_line=True)}={_readable(value)}", "dim")
    return line


def as_object(record: Record) -> dict[str, object]:
    """The record for scripts. Names of fields are a public interface."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": None if record.timestamp < 0 else iso_time(record.timestamp / 1000),
        "key": as_json(record.key),
        "value": as_json(record.value),
        "headers": [[name_as_json(name), as_json(value)] for name, value in record.headers],
    }


def _readable(data: bytes | None) -> str:
    """UTF-8 text on one line, other bytes in hexadecimal."""
    if data is None:
        return "null"
    try:
        return plain_text(data.decode(), one_line=True)
    except UnicodeDecodeError:
        return f"0x{data.hex()}"


def _write_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _write_value(record: Record) -> None:
    sys.stdout.buffer.write((record.value or b"") + b"\n")
    sys.stdout.buffer.flush()
