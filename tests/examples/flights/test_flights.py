"""The demo's data."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from itertools import islice

import pytest

from aioparallel.records.errors import AioparallelError
from examples.flights import flights
from examples.flights.flights import Enrichments, data_directory, read_flights, typed, value_of


@pytest.fixture(scope="module")
def enrichments() -> Enrichments:
    """The service's tables, read once."""
    return Enrichments(data_directory())


def test_first_flight_of_the_year() -> None:
    """The first record is the first flight of 2013, keyed by its tail number, with numbers as numbers."""
    (flight,) = read_flights(1)
    value = json.loads(flight.value)
    assert flight.key == b"N14228"
    assert (value["carrier"], value["flight"], value["origin"], value["dest"]) == ("UA", "1545", "EWR", "IAH")
    assert (value["month"], value["distance"], value["time_hour"]) == (1, 1400, "2013-01-01T10:00:00Z")


def test_flight_without_tail_number_has_no_key() -> None:
    """NA as tail number means no key, and null in the value; every other flight has its tail number as key."""
    found = list(read_flights(2_000))
    missing = [flight for flight in found if flight.key is None]
    assert missing
    assert all(json.loads(flight.value)["tailnum"] is None for flight in missing)
    assert all(json.loads(flight.value)["tailnum"].encode() == flight.key for flight in found if flight.key)


def test_flights_are_read_as_asked_for() -> None:
    """Asking for a few flights of many does not read the rest of the file."""
    assert len(list(islice(read_flights(), 3))) == 3


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("dep_delay", "NA", None),
        ("speed", "", None),
        ("dep_delay", "-4", -4),
        ("temp", "39.02", 39.02),
        ("flight", "0042", "0042"),
        ("time_hour", "2013-01-01T10:00:00Z", "2013-01-01T10:00:00Z"),
    ],
)
def test_values(name: str, text: str, value: object) -> None:
    """Missing values become None, measurements numbers, names stay as they are written."""
    assert value_of(name, text) == value
    assert type(typed({name: text})[name]) is type(value)


def test_known_plane(enrichments: Enrichments) -> None:
    """The answer to a flight of a known plane has the plane, both airports and the weather."""
    known, body = enrichments.answer("N14228", "EWR", "IAH", "2013-01-01T10:00:00Z")
    answer = json.loads(body)
    assert known
    assert answer["plane"]["manufacturer"] == "BOEING"
    assert answer["plane"]["speed"] is None
    assert (answer["from"]["faa"], answer["to"]["faa"]) == ("EWR", "IAH")
    assert answer["weather"]["origin"] == "EWR"


def test_unknown_plane_is_an_answer(enrichments: Enrichments) -> None:
    """What is known is still told when the plane, an airport or the weather is not."""
    known, body = enrichments.answer("NA", "JFK", "SJU", "1999-01-01T00:00:00Z")
    answer = json.loads(body)
    assert not known
    assert (answer["plane"], answer["to"], answer["weather"]) == (None, None, None)
    assert answer["from"]["faa"] == "JFK"


def test_missing_data_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the data package the error names the extra that brings it."""

    def not_found(name: str) -> object:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(flights, "distribution", not_found)
    with pytest.raises(AioparallelError, match=r"pip install '\.\[examples\]'"):
        data_directory()
