"""Messages that Kafka 4.3.1's own classes have written: ours read them, and write the same bytes."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from aioparallel.clients.messages import APIS, MalformedMessage, decode, encode
from tests.support.interop.java_messages import NAMES, Vector, message_classes, read_vectors
from tests.support.messages.as_json import as_json

VECTORS = read_vectors()
CLASSES = message_classes()


def identity(vector: Vector) -> str:
    return f"{vector.name}-{vector.version}"


def cuts(data: bytes) -> list[bytes]:
    """The beginnings of ``data``."""
    step = max(1, len(data) // 200)
    return [data[:size] for size in range(0, len(data), step)]


def test_every_version_is_there() -> None:
    """Of each message."""
    versions = {(name, version) for name, version, *_ in VECTORS}
    assert versions == {
        (api.name + kind, version)
        for api in APIS
        for kind in ("Request", "Response")
        for version in range(api.least, api.most + 1)
    }
    assert {name for name, _ in versions} == set(NAMES)


@pytest.mark.parametrize("vector", VECTORS, ids=identity)
def test_what_kafka_writes_is_read_and_written_again(vector: Vector) -> None:
    """With the content that Kafka says, and the same bytes."""
    message = decode(CLASSES[vector.name], vector.version, vector.data)
    assert as_json(message, vector.version) == vector.content
    assert encode(message, vector.version) == vector.data


@pytest.mark.parametrize("vector", VECTORS, ids=identity)
def test_unknown_tagged_fields_are_skipped(vector: Vector) -> None:
    """In each structure, so that brokers may add some."""
    assert len(vector.tagged) > len(vector.data)
    plain, tagged = (decode(CLASSES[vector.name], vector.version, data) for data in (vector.data, vector.tagged))
    assert tagged == plain


@pytest.mark.parametrize("vector", VECTORS, ids=identity)
def test_what_ends_early_or_late_is_refused(vector: Vector) -> None:
    """At each byte; the error names the message."""
    for data in [*cuts(vector.data), *cuts(vector.tagged), vector.data + b"\0", vector.tagged + b"x"]:
        with pytest.raises(MalformedMessage, match=f"{vector.name} in version {vector.version}"):
            decode(CLASSES[vector.name], vector.version, data)


def test_records_are_the_bytes() -> None:
    """Undecoded."""

    def records(content: Any) -> list[bytes]:
        return [base64.b64decode(one["records"]) for topic in content["responses"] for one in topic["partitions"]]

    some = [one for one in VECTORS if one.name == "ShareFetchResponse" and any(records(one.content))]
    assert len(some) > 3
    for one in some:
        message = decode(CLASSES[one.name], one.version, one.data)
        assert [part.records for topic in message.responses for part in topic.partitions] == records(one.content)
