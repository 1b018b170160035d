"""Markers as bytes: the vectors of softwaremill's KMQ 0.3.2."""

from __future__ import annotations

import pytest

from aioparallel.queues.kmq.markers import END, Marker, key_of, read_marker, redeliveries, start_of, with_count
from aioparallel.records.record import Record


def test_golden_vectors() -> None:
    """What the Java classes write."""
    assert key_of(1, 1000).hex() == "0000000100000000000003e8"
    assert start_of(4_000).hex() == "010000000000000fa0"
    assert start_of(10_000).hex() == "010000000000002710"
    assert END.hex() == "00"


def test_markers_are_read() -> None:
    """Any first byte but 1 is an end, as KMQ reads it; what has no key of 12 bytes, or no value, is no marker."""
    key = key_of(3, 2**40)
    assert read_marker(key, start_of(4_000)) == Marker(3, 2**40, 4_000)
    assert read_marker(key, END) == Marker(3, 2**40, None)
    assert read_marker(key, b"\x07anything") == Marker(3, 2**40, None)
    for wrong in [(None, END), (b"", END), (key[1:], END), (key, None), (key, b""), (key, b"\x01\x00")]:
        assert read_marker(*wrong) is None


@pytest.mark.parametrize(
    ("count", "written"), [(0, "00"), (1, "01"), (127, "7f"), (128, "00000080"), (70_000, "00011170")]
)
def test_the_count_of_redeliveries(count: int, written: str) -> None:
    """A byte where it fits one, else four; other headers stay."""
    headers = with_count((("a", b"1"), ("kmq-redelivery-count", b"\x09"), ("b", None)), count)
    assert headers == [("a", b"1"), ("b", None), ("kmq-redelivery-count", bytes.fromhex(written))]
    assert redeliveries(Record("t", 0, 0, None, None, tuple(headers))) == count
    assert redeliveries(Record("t", 0, 0, None, None, tuple(with_count(tuple(headers), None)))) == 0


@pytest.mark.parametrize("value", [None, b"", b"\x00\x05", b"\xff", b"\x80\x00\x00\x00", b"\x00" * 8])
def test_a_count_that_is_none_is_a_first_delivery(value: bytes | None) -> None:
    """Another length than 1 and 4 bytes, or less than 0."""
    headers = (("kmq-redelivery-count", value), ("other", b"\x05"))
    assert redeliveries(Record("t", 0, 0, None, None, headers)) == 0
