"""Real clusters that come back somewhere else, or as another one."""

from __future__ import annotations

import base64
import contextlib
import uuid
from collections.abc import Iterator

import pytest

from aioparallel.testing import LocalKafka
from aioparallel.testing.brokers import kafka_node

__all__ = ["another_cluster", "come_back", "stop_all"]


def stop_all(kafka: LocalKafka) -> None:
    """Every process of it ends."""
    for node in kafka._running():
        node.kill()


def come_back(kafka: LocalKafka) -> None:
    """After :func:`stop_all`: with its data, and each process at other ports than before."""
    nodes = kafka._running()
    before = {node.port for node in nodes}
    while before & {node.port for node in nodes}:
        nodes._write_properties()
    for node in nodes:
        node.start()
    nodes.wait_until_ready(nodes.brokers.values(), 60.0)


@contextlib.contextmanager
def another_cluster(monkeypatch: pytest.MonkeyPatch, port: int) -> Iterator[LocalKafka]:
    """One with an id of its own, at this port."""
    with monkeypatch.context() as patch:
        # 16 bytes in Kafka's spelling; one that begins with "-" would be taken for an option.
        patch.setattr(kafka_node, "_CLUSTER_ID", base64.urlsafe_b64encode(b"A" + uuid.uuid4().bytes[1:]).decode()[:22])
        with LocalKafka(compile_once=True, port=port) as kafka:
            yield kafka
