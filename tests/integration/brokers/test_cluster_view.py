"""What a broker says of its cluster, and what it means when it says nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from aioparallel.testing import LocalKafka
from aioparallel.testing.brokers.cluster_view import View, ask


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Somebody who listens and is no broker."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.mark.real
async def test_a_broker_knows_itself_and_its_topics(local_kafka: LocalKafka) -> None:
    """It names the brokers; of a topic leaders, epochs and replicas; of a missing one nothing."""
    await local_kafka.create_topic("looked-at", partitions=2)
    host, port = local_kafka.bootstrap_servers.split(":")
    view = ask(host, int(port), "looked-at", timeout=5.0)
    assert view.brokers == {1}
    assert view.partitions.keys() == {0, 1}
    assert {one.leader for one in view.partitions.values()} == {1}
    assert all(one.replicas == one.in_sync == {1} and one.leader_epoch >= 0 for one in view.partitions.values())
    assert ask(host, int(port), "never-made", timeout=5.0) == View(frozenset({1}), {})
    assert ask(host, int(port), timeout=5.0) == View(frozenset({1}), {})


def test_who_does_not_answer_in_time_is_an_error(listener: socket.socket) -> None:
    """A connection that stays silent ends as an OSError, as does one that nobody takes."""
    host, port = listener.getsockname()
    with pytest.raises(TimeoutError):
        ask(host, port, timeout=0.05)
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        ask(host, port, timeout=0.05)


@pytest.mark.parametrize("answer", [b"", b"\0\0\0\7abc", b"\0\0\0\2ab"], ids=["nothing", "half", "too short"])
def test_half_an_answer_is_an_error(listener: socket.socket, answer: bytes) -> None:
    """What ends in the middle, or is no metadata, is an OSError."""

    def speak() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1024)
            connection.sendall(answer)

    speaking = threading.Thread(target=speak)
    speaking.start()
    try:
        with pytest.raises(ConnectionError):
            ask(*listener.getsockname(), timeout=5.0)
    finally:
        speaking.join()
