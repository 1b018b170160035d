"""Apache Kafka in another version than the package's, for what only that one does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aioparallel.testing import LocalKafka

__all__ = ["kafka_of"]


@contextmanager
def kafka_of(version: str, **options: Any) -> Iterator[LocalKafka]:
    """A running broker. Its jars are fetched with Maven the first time. Raises BrokerStartError."""
    with LocalKafka(version=version, **options) as kafka:
        yield kafka
