"""The time of each deserialiser for one record: ``python -m benchmarks.deserializers``. Takes some seconds."""

from __future__ import annotations

import argparse
import json
import sys
import timeit
from collections.abc import Callable
from typing import Any, Final

import msgspec
from pydantic import BaseModel

from aioparallel.deserializers import from_json, msgspec_json, msgspec_msgpack, pydantic_json, text
from benchmarks import standalone
from benchmarks.kept import Row, Tables

CALLS: Final = 20_000
FLIGHT: Final = {
    "carrier": "UA", "number": 1545, "tail": "N14228", "origin": "EWR", "delay": 2.5, "time": "2013-01-01T05:15:00",
}  # fmt: skip


class Flight(msgspec.Struct):
    carrier: str
    number: int
    tail: str
    origin: str
    delay: float
    time: str


class FlightModel(BaseModel):
    carrier: str
    number: int
    tail: str
    origin: str
    delay: float
    time: str


def measure(given: argparse.Namespace) -> Tables:
    """The fastest round of each: slower ones include other work of the machine."""
    as_json, as_msgpack = json.dumps(FLIGHT).encode(), msgspec.msgpack.encode(FLIGHT)
    each: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
        "text()": (text(), as_json),
        "msgspec_msgpack(Struct)": (msgspec_msgpack(Flight), as_msgpack),
        "msgspec_json(Struct)": (msgspec_json(Flight), as_json),
        "msgspec_json(dict)": (msgspec_json(dict), as_json),
        "pydantic_json(Model)": (pydantic_json(FlightModel), as_json),
        "from_json": (from_json, as_json),
    }
    rows: list[Row] = []
    for name, (read, raw) in each.items():
        took = min(timeit.repeat(lambda read=read, raw=raw: read(raw), number=CALLS, repeat=given.rounds))  # type: ignore[misc]
        rows.append({"": f"`{name}`", "bytes": len(raw), "µs a record": took / CALLS * 1e6})
    return {f"The best of {given.rounds} rounds": rows}


def main() -> int:
    """Returns the exit code."""
    parser = standalone.parser_of("deserializers", __doc__)
    parser.add_argument("--rounds", type=int, default=9, help="of each; the best one counts (9)")
    return standalone.run("deserializers", parser, parser.parse_args(), measure, beside="none")


if __name__ == "__main__":
    sys.exit(main())
