"""Records that cannot be decoded, and batches that cannot be read: the data around them is read."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from aiokafka.codec import gzip_encode, zstd_encode
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.clients.aiokafka.decoding import Decoder
from aioparallel.clients.aiokafka.raw_batches import Damaged, frame_at, records_in
from aioparallel.records.record import Record
from tests.unit.clients.test_decoding import PARTITION, batch, logs, response, shown

STAND_IN = "header-in-place-of-bytes"
"""Replaced by bytes of its length that are not UTF-8."""
RAW = b"\xff" + b"y" * (len(STAND_IN) - 1)
CRC, ATTRIBUTES, DELTA, HEADER = 17, 21, 23, 61
ENCODE: dict[int, Callable[[bytes], bytes]] = {1: gzip_encode, 4: zstd_encode}


def sealed(data: bytearray) -> bytes:
    """The batch with a correct checksum."""
    struct.pack_into(">I", data, CRC, calc_crc32c(bytes(data[ATTRIBUTES:])))
    return bytes(data)


def built(first: int, headers: list[list[tuple[str, bytes | None]]], codec: int = 0) -> bytes:
    """A batch with these records; header names that are ``STAND_IN`` become ``RAW``."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=0, base_sequence=0,
        batch_size=1 << 20,
    )  # fmt: skip
    for offset, some in enumerate(headers):
        builder.append(offset, 1_000 + offset, b"key", b"v%d" % offset, some)
    plain = bytes(builder.build()).replace(STAND_IN.encode(), RAW)
    return placed(plain, first, codec)


def placed(plain: bytes, first: int, codec: int = 0) -> bytes:
    """The batch at this offset, with its records compressed."""
    head, body = plain[:HEADER], plain[HEADER:]
    data = bytearray(head + (bytes(ENCODE[codec](body)) if codec else body))
    struct.pack_into(">qi", data, 0, first, len(data) - 12)
    data[ATTRIBUTES + 1] |= codec
    return sealed(data)


def read(data: bytes, position: int = 0, portions: int = 100) -> tuple[list[Record], int, Damaged | None]:
    """The decoded records, the position after them, and the error that ended the reading."""
    partition_records = response(data, [], position, crcs=True)
    decoder, records = Decoder(PARTITION, data), list[Record]()
    try:
        while decoder.take(partition_records, portions, records):
            pass
    except Damaged as damage:
        return records, partition_records.next_fetch_offset, damage
    return records, partition_records.next_fetch_offset, None


def fault(record: Record) -> str | None:
    return None if record._history is None else record._history.undecodable


@pytest.mark.parametrize("codec", [0, 1, 4])
@pytest.mark.parametrize("portions", [1, 2, 100])
def test_a_header_name_that_is_no_utf_8_is_the_failure_of_its_record(codec: int, portions: int) -> None:
    """It comes with key, value and headers, its name as surrogates. Other records, in the same batch and in the next
    one, are not affected."""
    plain: list[tuple[str, bytes | None]] = [("name", b"x")]
    data = built(5, [plain, [("a", b"1"), (STAND_IN, b"2"), ("b", None)], [], plain], codec) + built(9, [plain], codec)
    records, position, damage = read(data, 5, portions)
    assert damage is None
    assert [record.offset for record in records] == [5, 6, 7, 8, 9]
    assert position == 10
    told = "the name of header 2 of 3 is not UTF-8: b'\\xffyyy"
    assert [(fault(record) or "")[: len(told)] for record in records] == ["", told, "", "", ""]
    wrong = records[1]
    assert (wrong.key, wrong.value, wrong.timestamp) == (b"key", b"v1", 1_001)
    assert wrong.headers == (("a", b"1"), (RAW.decode("utf-8", "surrogateescape"), b"2"), ("b", None))
    assert records[0].headers == records[3].headers == (("name", b"x"),)


def test_a_broken_record_keeps_the_parts_before_the_error() -> None:
    """The parts before the error are returned. Its length still gives the start of the next record."""
    data = bytearray(built(0, [[], [("name", b"x")], []]))
    data[data.index(b"\x08name")] = 0x7E  # a name of 63 bytes
    records, position, damage = read(sealed(data))
    assert damage is None
    assert [record.offset for record in records] == [0, 1, 2]
    assert position == 3
    assert fault(records[1]) == ("its header 1 of 1 cannot be read: its length is 63 bytes, and 6 are left")
    assert (records[1].key, records[1].value, records[1].headers) == (b"key", b"v1", ())
    assert fault(records[0]) is fault(records[2]) is None


def test_a_batch_whose_records_do_not_fit_is_read_up_to_there() -> None:
    """After a wrong length the start of the next record is unknown, but not that of the next batch."""
    data = bytearray(built(0, [[], [(STAND_IN, b"x")], [], []]))
    # The third record's length is the first byte behind the second record's header value.
    begin = data.index(RAW) + len(RAW) + 2
    data[begin] = 0x7E
    records, position, damage = read(sealed(data) + built(4, [[]]))
    assert [record.offset for record in records] == [0, 1]
    assert position == 2
    assert damage is not None
    assert damage.place == (0, 4)
    assert damage.reason.startswith("record 3 of 4: its length is 63 bytes")


@pytest.mark.parametrize("following", [True, False])
def test_a_wrong_checksum_names_the_batch_and_where_it_ends(following: bool) -> None:
    """The data before it was taken, and the position stays before it."""
    damaged = bytearray(batch(2, [True, True, True], None, 0))
    damaged[-2] ^= 1
    data = batch(0, [True, True], None, 0) + bytes(damaged) + (batch(5, [True], None, 0) if following else b"")
    records, position, damage = read(data)
    assert [record.offset for record in records] == [0, 1]
    assert position == 2
    assert damage is not None
    assert (damage.place, damage.reason) == ((2, 5), "its checksum is wrong")


@pytest.mark.parametrize(("delta", "following", "ends"), [(1000, 5, 5), (-7, 5, 5), (-7, None, None), (1, 5, 4)])
def test_a_header_that_is_damaged_itself_is_not_believed_over_the_next_batch(
    delta: int, following: int | None, ends: int | None
) -> None:
    """If nothing else gives the end of the batch, it is unknown."""
    damaged = bytearray(batch(2, [True, True, True], None, 0))
    struct.pack_into(">i", damaged, DELTA, delta)
    data = bytes(damaged) + (b"" if following is None else batch(following, [True], None, 0))
    _, position, damage = read(data, 2)
    assert position == 2
    assert damage is not None
    assert damage.place == (2, ends)


def test_an_unknown_codec_is_damage_of_its_batch() -> None:
    """The batches before and after it are not affected."""
    strange = bytearray(batch(1, [True, True], None, 0))
    strange[ATTRIBUTES + 1] |= 7
    records, position, damage = read(batch(0, [True], None, 0) + sealed(strange) + batch(3, [True], None, 0))
    assert [record.offset for record in records] == [0]
    assert position == 1
    assert damage is not None
    assert (damage.place, damage.reason) == ((1, 3), "codec 7 is unknown")


def test_what_a_codec_refuses_is_damage_of_its_batch() -> None:
    """With a correct checksum, for example from a faulty producer."""
    strange = bytearray(batch(1, [True, True], None, 0))
    strange[ATTRIBUTES + 1] |= 4
    _, _, damage = read(sealed(strange), 1)
    assert damage is not None
    assert damage.place == (1, 3)
    assert damage.reason.startswith("its codec zstd cannot decompress it")


def test_a_message_of_an_old_format_is_its_own_batch() -> None:
    """It has the offset of its last record."""
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=1, batch_size=1 << 20)
    for offset in range(5):
        builder.append(offset, 1_000 + offset, b"k", b"v%d" % offset)
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, 4)  # as a broker does
    data[-2] ^= 1
    _, position, damage = read(bytes(data), 2)
    assert position == 2
    assert damage is not None
    assert (damage.place, damage.reason) == ((4, 5), "its checksum is wrong")


@given(logs(), st.integers(0, 12))
def test_a_close_look_reads_what_aiokafka_reads(log: tuple[bytes, list[tuple[int, int]], int], ahead: int) -> None:
    """For every batch, from any position, with every codec."""
    data, at = log[0], 0
    while (frame := frame_at(data, at)) is not None:
        at += len(frame.data)
        if frame.data[ATTRIBUTES + 1] & 0x20:
            continue  # a marker
        position = frame.offset + ahead
        expected = [shown(record) for record in response(frame.data, [], position)]
        found = [(one.offset, one.key, one.value, one.headers, one.timestamp) for one in records_in(frame, position)]
        assert found == expected
