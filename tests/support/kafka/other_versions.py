"""Apache Kafka in another version than the package's, for what only that one does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from aioparallel.jvm.maven import Artifact
from aioparallel.jvm.sets import KAFKA
from aioparallel.testing import LocalKafka

__all__ = ["kafka_of"]


@contextmanager
def kafka_of(version: str, **options: Any) -> Iterator[LocalKafka]:
    """A running broker. Its jars are fetched with Maven the first time. Raises BrokerStartError."""
    artifacts = (Artifact("org.apache.kafka", "kafka_2.13", version), *KAFKA.artifacts[1:])
    jars = replace(KAFKA, version=version, artifacts=artifacts)
    with patch("aioparallel.testing.brokers.local.KAFKA", jars), LocalKafka(**options) as kafka:
        yield kafka
