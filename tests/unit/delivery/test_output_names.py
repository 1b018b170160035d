"""Outputs of one call that would have the same name."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest

from aioparallel import Outgoing, Record, source_headers
from aioparallel.delivery.output_names import with_digests
from aioparallel.delivery.outputs import outputs_in
from aioparallel.records.record import Headers
from aioparallel.records.source_headers import Coordinates, coordinates_of

RECORD = Record("raw", 3, 1024, b"k", b"v", (("trace", b"1"),))
PLACE = source_headers(RECORD)


def part(value: bytes | None, headers: Headers = PLACE, key: bytes | None = b"k", topic: str = "work") -> Outgoing:
    """One of several outputs."""
    return Outgoing(topic, value, key, headers)


def names(outputs: Iterable[Outgoing]) -> list[tuple[str, Coordinates | None]]:
    """By what a consumer that deduplicates knows them."""
    return [(output.topic, coordinates_of(tuple(output.headers))) for output in outputs]


def test_outputs_of_one_source_are_told_apart() -> None:
    """By value, by key, by a header; those that are equal, by their place among each other."""
    given = [part(b"a"), part(b"b"), part(b"a", key=b"l"), part(b"a", (*PLACE, ("kind", b"2"))), part(b"a"), part(None)]
    found = outputs_in(RECORD, given)
    assert found is not None
    assert len(set(names(found))) == len(given)
    assert [(one.topic, one.key, one.value) for one in found] == [(one.topic, one.key, one.value) for one in given]
    assert all(output.headers == PLACE for output in given[:3])
    assert {header for output in found for header in output.headers if header[0] == "trace"} == {("trace", b"1")}


def test_the_same_outputs_in_another_order_have_the_same_names() -> None:
    """A second attempt: what it writes again is known, what it adds is new, and nothing takes the name of another."""
    given = [part(b"a"), part(b"b"), part(b"b"), part(b"c"), part(b"b")]
    before = named(with_digests(given))
    again = given[:]
    random.Random(1).shuffle(again)
    assert named(with_digests(again)) == before
    more = named(with_digests([part(b"new"), *given]))
    assert before < more
    # Known for good: names are compared with those that another process has written.
    assert with_digests([part(b"a"), part(b"b")])[0].headers[-1] == ("src-digest", b"6582786e47423777")


def named(outputs: Sequence[Outgoing]) -> set[tuple[bytes | None, Coordinates | None]]:
    """Values and names."""
    return {(output.value, coordinates_of(tuple(output.headers))) for output in outputs}


@pytest.mark.parametrize(
    "given",
    [
        [part(b"a")],
        [part(b"a", source_headers(RECORD, 0)), part(b"a", source_headers(RECORD, 1))],
        [part(b"a", topic="one"), part(b"a", topic="other")],
        [part(b"a", ()), part(b"a", ())],
        [part(b"a", (*PLACE, ("src-digest", b"1"))), part(b"a", (*PLACE, ("src-digest", b"2")))],
    ],
)
def test_outputs_with_names_of_their_own_are_left_as_they_are(given: list[Outgoing]) -> None:
    """Single ones, numbered ones, those of several topics, those that name no source."""
    assert all(one is other for one, other in zip(with_digests(given), given, strict=True))


def test_headers_that_are_passed_on_are_told_apart_within_their_digest() -> None:
    """Behind Spark a record has a digest of its own, and several are made of it."""
    passed = (*PLACE, ("src-digest", b"9f86d081884c7d65"))
    other = (*PLACE, ("src-digest", b"0000000000000000"))
    found = with_digests([part(b"a", passed), part(b"b", passed)]), with_digests([part(b"a", other), part(b"b", other)])
    assert len({name for outputs in found for name in names(outputs)}) == 4
    assert all(len([1 for name, _ in one.headers if name == "src-digest"]) == 1 for one in found[0])


def test_what_was_changed_to_something_else_is_told_where_it_is_sent() -> None:
    """Nothing is made of it here."""
    wrong = part(b"a")
    wrong.headers = "headers"  # type: ignore[assignment]
    given = [part(b"a"), wrong]
    assert with_digests(given) is given
