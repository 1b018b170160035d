"""The hash of keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.clients.outbox.partitioning import murmur2, partition_of_key

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
    """Kafka's own vectors."""
    assert murmur2(key) == VECTORS[key] % 2**32


@given(st.binary(max_size=40), st.integers(1, 100))
def test_a_key_has_one_of_the_partitions(key: bytes, count: int) -> None:
    """Always the same one of those there are."""
    partitions = list(range(count))
    assert partition_of_key(key, partitions) == partition_of_key(key, partitions) in partitions
