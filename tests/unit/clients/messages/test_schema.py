"""What the codecs accept and refuse."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Annotated

import pytest

from aioparallel.clients.messages import APIS, MalformedMessage, UnencodableMessage, decode, encode
from aioparallel.clients.messages.assignments import TopicPartitions, new_member_id
from aioparallel.clients.messages.consumer_groups import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from aioparallel.clients.messages.schema import Int8, Int32, Since
from aioparallel.clients.messages.share_groups import ShareGroupDescribeRequest
from aioparallel.clients.messages.share_records import (
    AcknowledgementBatch,
    AcknowledgeType,
    AcquireMode,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareFetchResponse,
)

HUGE = b"\xff\xff\xff\xff\x0f"
"""The largest number of 32 bits."""


def share_fetch(**changed: object) -> ShareFetchRequest:
    fields: dict[str, object] = {
        "group_id": "g", "member_id": "m", "share_session_epoch": 0, "max_wait_ms": 500, "min_bytes": 1,
        "max_records": 500, "batch_size": 500,
    }  # fmt: skip
    return ShareFetchRequest(**(fields | changed))  # type: ignore[arg-type]


@dataclass(frozen=True)
class One:
    name: str
    numbers: tuple[Int32, ...] | None = None
    flag: bool = False
    later: Annotated[Int8, Since(3)] = 7


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (One("x" * 32_768), r"One\.name: has 32768 bytes"),
        (One("\ud800"), r"One\.name: .*surrogates"),
        (One(None), r"One\.name: must not be None"),  # type: ignore[arg-type]
        (One(b"x"), r"One\.name: .*bytes"),  # type: ignore[arg-type]
        (One("", (2**31,)), r"One\.numbers: "),
        (One("", (1.5,)), r"One\.numbers: "),  # type: ignore[arg-type]
        (One("", later=8), r"One\.later does not exist in version 2"),
        (ShareGroupDescribeRequest(group_ids="group"), r"group_ids: 'group' is a string"),  # type: ignore[arg-type]
        (TopicPartitions(b"short", ()), r"TopicPartitions\.topic_id: a UUID has 16 bytes, not 5"),
        (AcknowledgementBatch(0, 2**63, ()), r"AcknowledgementBatch\.first_offset, last_offset: "),
        (
            ConsumerGroupHeartbeatRequest(
                group_id="g", member_id="", member_epoch=0, topic_partitions=(TopicPartitions(b"", ()),)
            ),
            r"TopicPartitions\.topic_id",
        ),
    ],
)
def test_what_does_not_fit_is_refused(message: object, reason: str) -> None:
    """With the field."""
    with pytest.raises(UnencodableMessage, match=reason):
        encode(message, 2)


def test_the_longest_string() -> None:
    """As in Java."""
    assert decode(One, 2, encode(One("x" * 32_767), 2)).name == "x" * 32_767
    with pytest.raises(MalformedMessage, match="a string of 32768 bytes"):
        decode(One, 2, b"\x81\x80\x02" + b"x" * 32_768 + b"\0\0\0")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0\0\0\0", "null at byte 0, which is not allowed"),
        (b"\x02\xff\0\0\0", "is not UTF-8"),
        (b"\x02a" + HUGE, "4294967294 or more bytes must follow byte 7, and 0 do"),
        (b"\x02a" + HUGE[:-1] + b"\x10\0\0", "more than 32 bits"),
        (b"\x02a" + b"\x80" * 6, "more than 5 bytes"),
        (b"\x02a\0\0" + HUGE, "must follow"),
        (b"\x02a\0\0\x01\x05" + HUGE, "must follow"),
        (b"\x02a\0\0\x01\x05\x03ab", "3 or more bytes"),
        (b"\x02a\0\0\0\0", "1 bytes follow its end"),
        (b"", "1 or more bytes must follow byte 0, and 0 do"),
    ],
)
def test_what_cannot_be_read(data: bytes, reason: str) -> None:
    """With what is wrong and where."""
    with pytest.raises(MalformedMessage, match=f"a One in version 2 cannot be read: .*{reason}"):
        decode(One, 2, data)


def test_null_and_empty_differ() -> None:
    """Arrays, strings and structures."""
    for numbers in (None, (), (1,)):
        assert decode(One, 2, encode(One("", numbers), 2)).numbers == numbers
    response = ConsumerGroupHeartbeatResponse(error_message="")
    again = decode(ConsumerGroupHeartbeatResponse, 1, encode(response, 1))
    assert (again.error_message, again.member_id, again.assignment) == ("", None, None)


def test_any_other_byte_than_0_is_true() -> None:
    """As in Java."""
    assert decode(One, 2, b"\x01\x00\x05\x00").flag is True


def test_later_fields() -> None:
    """They have their default where the version lacks them, and are refused only if they would be lost."""
    assert decode(One, 2, encode(One("a"), 2)) == One("a")
    assert decode(One, 3, encode(One("a", later=9), 3)).later == 9
    assert encode(share_fetch(share_acquire_mode=AcquireMode.RECORD_LIMIT), 1) == encode(share_fetch(), 1)
    with pytest.raises(UnencodableMessage, match="is_renew_ack does not exist in version 1"):
        encode(share_fetch(is_renew_ack=True), 1)


def test_numbers_may_be_of_an_enumeration() -> None:
    """As the ones that are meant for them."""
    batch = AcknowledgementBatch(3, 4, (AcknowledgeType.ACCEPT, AcknowledgeType.RENEW))
    assert encode(batch, 2) == bytes.fromhex("0000000000000003 0000000000000004 03 01 04 00")


def test_lists_do_for_tuples() -> None:
    """To write; what is read has tuples."""
    request = ShareGroupDescribeRequest(group_ids=["a", "b"])  # type: ignore[arg-type]
    assert decode(ShareGroupDescribeRequest, 1, encode(request, 1)).group_ids == ("a", "b")


def test_records_must_not_be_null() -> None:
    """Java refuses them as well."""
    empty = "00000000 0000 00 00000000 02" + "00" * 16 + "02 00000000 0000 00 0000 00 00000000 00000000 00"
    with pytest.raises(MalformedMessage, match="null at byte"):
        decode(ShareFetchResponse, 2, bytes.fromhex(empty + " 00 01 00 00 01 00"))


def test_what_has_no_form_on_the_wire() -> None:
    """A mistake in a definition."""

    @dataclass
    class Wrong:
        number: int

    with pytest.raises(TypeError, match=r"<class 'int'> has no form on the wire"):
        encode(Wrong(1), 1)


def test_messages_are_read_from_within() -> None:
    """From the end of a header, for instance."""
    assert decode(One, 2, b"header" + encode(One("a"), 2), 6) == One("a")


@pytest.mark.parametrize(
    ("broker", "newest"), [((0, 0), 0), ((0, 1), 1), ((0, 9), 1), ((1, 1), 1), ((2, 3), None), (None, None)]
)
def test_the_newest_version_that_both_speak(broker: tuple[int, int] | None, newest: int | None) -> None:
    """None if there is none."""
    assert CONSUMER_GROUP_HEARTBEAT.newest({} if broker is None else {68: broker}) == newest


def test_an_older_version_than_the_brokers_oldest_is_not_used() -> None:
    """Neither is a version of the early access of Kafka 4.0."""
    (share_ack,) = (api for api in APIS if api.request is ShareAcknowledgeRequest)
    assert share_ack.newest({79: (0, 0)}) is None
    assert share_ack.newest({79: (0, 1)}) == 1


def test_the_apis_are_in_order() -> None:
    """Each once."""
    keys = [api.key for api in APIS]
    assert keys == sorted(set(keys)) == [44, 68, 69, 76, 77, 78, 79, 90, 91, 92]


def test_member_ids_are_javas() -> None:
    """22 characters that are 16 bytes, and none begins like an option."""
    found = {new_member_id() for _ in range(1_000)}
    assert len(found) == 1_000
    assert {len(base64.urlsafe_b64decode(one + "==")) for one in found} == {16}
    assert not any(one.startswith("-") or len(one) != 22 for one in found)
