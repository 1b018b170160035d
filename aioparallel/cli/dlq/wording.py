"""Times, bytes and texts of strangers, made fit for a terminal and for JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Final

__all__ = ["age", "as_json", "counted", "iso_time", "local_time", "plain_text", "readable"]

DUMPED: Final = 512
"""Bytes of a value that is no text which are shown."""


def local_time(at: float) -> str:
    """To the second, in this machine's zone. ``at``: seconds since the epoch."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def iso_time(at: float) -> str:
    """To the millisecond, with the zone."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="milliseconds")


def age(seconds: float) -> str:
    """How long ago, in the largest unit that makes one or more."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return "now"


def plain_text(text: str, *, one_line: bool = False) -> str:
    """Without what would steer the terminal: a message or a header may hold anything."""
    if one_line:
        text = " ".join(text.split())
    return "".join(one if one.isprintable() or one in "\n\t" else f"\\x{ord(one):02x}" for one in text)


def readable(data: bytes | None) -> str:
    """JSON laid out, other UTF-8 text as it is, anything else as a dump of its first 512 bytes."""
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
    if not isinstance(value, dict | list):
        return plain_text(text)
    return plain_text(json.dumps(value, indent=2, ensure_ascii=False))


def _dump(data: bytes) -> Iterator[str]:
    for start in range(0, min(len(data), DUMPED), 16):
        line = data[start : start + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        yield f"{start:08x}  {line.hex(' '):<47}  {shown}"
    if len(data) > DUMPED:
        yield f"... {len(data):,} bytes in all; --raw writes them out"


def as_json(data: bytes | None) -> object:
    """UTF-8 text as a string, anything else as ``{"base64": "..."}``."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def counted(count: int, noun: str) -> str:
    """A number and its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
