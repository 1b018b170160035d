"""The hash of keys."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.clients.producing.partitioning import KeyHashes, murmur2
from aioparallel.clients.producing.pending import Outstanding
from aioparallel.clients.producing.topic import Topic

# From the tests of Kafka's Java client (org.apache.kafka.common.utils.UtilsTest), signed as there.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", VECTORS)
def test_the_hash_is_that_of_the_java_client(key: bytes) -> None:
    """Kafka's own test vectors."""
    assert murmur2(key) == VECTORS[key] % 2**32


def expected_partition(key: bytes, count: int) -> int:
    """As Kafka's producers choose it."""
    return (murmur2(key) & 0x7FFFFFFF) % count


@given(st.lists(st.sampled_from([b"", b"a", b"b"]) | st.binary(max_size=12), max_size=50), st.integers(1, 100))
def test_a_topic_remembers_hashes_and_changes_nothing(keys: list[bytes], count: int) -> None:
    """A key goes where its hash says, whether it is cached or new, and follows the number of partitions."""
    hashes = KeyHashes()
    topics = [Topic(name, 1000, None, hashes, Outstanding()) for name in ("one", "two")]
    for now in (count, count + 1):
        for topic in topics:
            topic.update(range(now), range(now))
        for key in keys * 2:
            expected = expected_partition(key, now)
            assert [topic.queue_of_key(key).partition for topic in topics] == [expected, expected]


def test_two_keys_of_one_slot() -> None:
    """Each gets its own hash, whichever was in the slot before."""
    slots: dict[int, bytes] = {}
    number = 0
    while (other := slots.setdefault(hash(b"%d" % number) & KeyHashes.MASK, b"%d" % number)) == b"%d" % number:
        number += 1
    topic = Topic("t", 1000, None, KeyHashes(), Outstanding())
    topic.update(range(1000), range(1000))
    for key in (other, b"%d" % number) * 3:
        assert topic.queue_of_key(key).partition == expected_partition(key, 1000)


def test_many_large_keys_take_little_memory() -> None:
    """2,000 keys of 500 bytes in three topics take less than 2 MB in total, and no key is stored."""
    tracemalloc.start()
    try:
        hashes = KeyHashes()
        topics = [Topic(name, 1000, None, hashes, Outstanding()) for name in ("one", "two", "three")]
        for topic in topics:
            topic.update(range(4), range(4))
        for number in range(2_000):
            key = b"%0500d" % number
            for topic in topics:
                topic.queue_of_key(key)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 2_000_000
