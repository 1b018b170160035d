"""Our messages against Kafka's own classes, of the oldest and the newest brokers too, in both directions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioparallel.clients.messages import APIS, MalformedMessage, decode, encode
from aioparallel.records.errors import JarsMissing
from tests.interop.conftest import give_up
from tests.support.interop.java_messages import (
    JavaMessages,
    Vector,
    find,
    message_classes,
    random_vectors,
    read_vectors,
)
from tests.support.interop.java_programs import JavaProgramsMissing
from tests.support.messages.as_json import as_json
from tests.support.messages.random import messages

pytestmark = pytest.mark.timeout(600, func_only=True)

CLASSES = message_classes()
LENIENT = ("is not UTF-8", "has more than 32 bits")
"""What Java replaces or cuts off."""


class Written(NamedTuple):
    name: str
    version: int
    message: Any
    data: bytes


def classes(version: str) -> JavaMessages:
    try:
        return find(version, os.environ)
    except (JavaProgramsMissing, JarsMissing) as missing:
        give_up(str(missing), os.environ)


@pytest.fixture(
    scope="module",
    params=[*(pytest.param(one, marks=pytest.mark.slow) for one in ("4.0.0", "4.1.0", "4.3.1")), "4.4.0"],
)
def java(request: pytest.FixtureRequest) -> JavaMessages:
    """Kafka's classes."""
    return classes(request.param)


@pytest.fixture(scope="module")
def newest() -> JavaMessages:
    """Those of the newest version."""
    return classes("4.4.0")


def drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Up to ``count`` examples."""
    found: list[Any] = []

    @given(strategy)
    @settings(max_examples=count)
    def collect(example: Any) -> None:
        found.append(example)

    collect()
    return found


def written_by_us() -> Iterator[Written]:
    """Random messages of each kind and version."""
    for api in APIS:
        for cls, kind in ((api.request, "Request"), (api.response, "Response")):
            for version in range(api.least, api.most + 1):
                for message in drawn(messages(cls, version), 30):
                    yield Written(api.name + kind, version, message, encode(message, version))


def shown(content: Any) -> Any:
    """Without records, of which Java shows none."""
    if isinstance(content, list):
        return [shown(one) for one in content]
    if isinstance(content, dict):
        return {name: shown(value) for name, value in content.items() if name != "records"}
    return content


def damaged(vectors: list[Vector], seed: int) -> Iterator[tuple[str, int, bytes]]:
    """Recorded messages with some bytes changed."""
    random = Random(seed)
    while True:
        vector = random.choice(vectors)
        data = bytearray(random.choice((vector.data, vector.tagged)))
        for _ in range(random.choice((1, 1, 2, 5))):
            data[random.randrange(len(data))] = random.choice((0, 1, 2, 0x7F, 0x80, 0xFF, random.randrange(256)))
        if random.random() < 0.2:
            data = data[: random.randrange(len(data))]
        yield vector.name, vector.version, bytes(data)


def ours(name: str, version: int, data: bytes) -> Any:
    """What we read, or why we do not."""
    try:
        return decode(CLASSES[name], version, data)
    except MalformedMessage as error:
        return str(error)


def test_our_versions_are_kafkas(newest: JavaMessages) -> None:
    """All that its newest clients have."""
    for api in APIS:
        for kind in ("Request", "Response"):
            definition = newest.definitions[api.name + kind]
            assert (definition.least, definition.most) == (api.least, api.most), definition.name


def test_we_read_and_write_what_kafka_writes(java: JavaMessages) -> None:
    """Content and bytes; with unknown tagged fields the content."""
    vectors = random_vectors(java, seed=7, of_each=40)
    assert len(vectors) >= 8 * 40
    for name, version, content, data, tagged in vectors:
        message = decode(CLASSES[name], version, data)
        assert as_json(message, version) == content
        assert encode(message, version) == data
        assert decode(CLASSES[name], version, tagged) == message


def test_kafka_reads_and_writes_what_we_write(newest: JavaMessages) -> None:
    """Content and bytes."""
    written = list(written_by_us())
    assert len(written) > 500
    read = newest.decode((one.name, one.version, one.data) for one in written)
    for one, (data, content) in zip(written, read, strict=True):
        assert shown(content) == shown(as_json(one.message, one.version))
        assert data == one.data


def test_damage_is_read_alike(newest: JavaMessages) -> None:
    """What we read of damaged bytes is what Java reads. We refuse what it refuses, and text and numbers that it
    mends."""
    some = list(islice(damaged(read_vectors(), seed=11), 4_000))
    refused, mended = 0, []
    for (name, version, data), read in zip(some, newest.try_to_decode(some), strict=True):
        message = ours(name, version, data)
        refused += isinstance(message, str)
        if isinstance(message, str):
            if not isinstance(read, str):
                mended.append(message)
        else:
            assert not isinstance(read, str), (name, version, data.hex(), read)
            assert shown(read[1]) == shown(as_json(message, version))
    assert all(any(reason in one for reason in LENIENT) for one in mended), mended
    assert 0 < len(mended) < refused < len(some)
