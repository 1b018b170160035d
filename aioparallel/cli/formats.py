"""Records in the JSON of several commands. Names and forms are a public interface."""

from __future__ import annotations

import base64

from aioparallel.cli.console import far_time, moment_of
from aioparallel.records.record import raw_name

__all__ = ["as_json", "iso_time", "name_as_json"]


def as_json(data: bytes | None) -> object:
    """UTF-8 text as a string, other bytes as ``{"base64": "..."}``."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def name_as_json(name: str) -> object:
    """A header's name as a string, or as ``{"base64": "..."}`` if its bytes are no UTF-8."""
    return name if (raw := raw_name(name)) is None else as_json(raw)


def iso_time(at: float) -> str:
    """ISO 8601 with milliseconds and zone."""
    moment = moment_of(at)
    return far_time(at) if moment is None else moment.isoformat(timespec="milliseconds")
