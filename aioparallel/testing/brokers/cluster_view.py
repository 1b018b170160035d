"""A broker's view of its cluster, from a Metadata request to that broker alone.

A client would choose any broker, and wait 40 s for one that hangs.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

__all__ = ["PartitionView", "View", "ask"]

_METADATA: Final = 3
_VERSION: Final = 7
"""The last version with almost only fixed-width fields, and the first with leader epochs (Kafka protocol guide)."""
_CORRELATION_ID: Final = 11

T = TypeVar("T")


class PartitionView(NamedTuple):
    """A partition as a broker sees it. Brokers are identified by Kafka's ``node.id``."""

    leader: int
    """-1 if there is none."""
    leader_epoch: int
    """A higher epoch is newer."""
    replicas: frozenset[int]
    in_sync: frozenset[int]


class View(NamedTuple):
    """A cluster as a broker sees it."""

    brokers: frozenset[int]
    """The numbers of the live brokers."""
    partitions: dict[int, PartitionView]
    """The partitions of the requested topic; empty if the broker does not know it."""


def ask(host: str, port: int, topic: str | None = None, *, timeout: float) -> View:
    """Request the cluster's metadata, and that of a topic, from one broker.

    Raises OSError if a step takes more than ``timeout`` seconds, or if the answer is incomplete.
    """
    topics = b"" if topic is None else struct.pack(">h", len(topic.encode())) + topic.encode()
    body = struct.pack(">i", topic is not None) + topics + struct.pack(">?", False)
    request = struct.pack(">hhih", _METADATA, _VERSION, _CORRELATION_ID, -1) + body
    with socket.create_connection((host, port), timeout) as connection:
        connection.settimeout(timeout)
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _receive(connection, 4))
        answer = _receive(connection, size)
    try:
        return _view(_Reader(answer))
    except struct.error as error:
        raise ConnectionError(f"the broker at {host}:{port} did not answer with metadata") from error


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        data = connection.recv(size - len(received))
        if not data:
            raise ConnectionError("the broker closed the connection before it answered")
        received += data
    return received


class _Reader:
    """Reads the fields of a response in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def numbers(self, form: str) -> tuple[int, ...]:
        fields: tuple[int, ...] = struct.unpack_from(">" + form, self._data, self._at)
        self._at += struct.calcsize(">" + form)
        return fields

    def text(self) -> str:
        (size,) = self.numbers("h")
        begin, self._at = self._at, self._at + max(size, 0)
        return self._data[begin : self._at].decode()

    def array(self, item: Callable[[], T]) -> list[T]:
        (count,) = self.numbers("i")
        return [item() for _ in range(count)]

    def number(self) -> int:
        return self.numbers("i")[0]


def _view(reader: _Reader) -> View:
    reader.numbers("ii")  # correlation id, throttle time

    def broker() -> int:
        number = reader.number()
        reader.text()
        reader.number()
        reader.text()
        return number

    def partition() -> tuple[int, PartitionView]:
        _, number, leader, epoch = reader.numbers("hiii")
        replicas, in_sync = (frozenset(reader.array(reader.number)) for _ in range(2))
        reader.array(reader.number)  # offline replicas
        return number, PartitionView(leader, epoch, replicas, in_sync)

    def topic() -> dict[int, PartitionView]:
        reader.numbers("h")  # the error code; there are no partitions in that case
        reader.text()
        reader.numbers("b")
        return dict(reader.array(partition))

    brokers = frozenset(reader.array(broker))
    reader.text()  # cluster id
    reader.number()  # controller
    topics = reader.array(topic)
    return View(brokers, topics[0] if topics else {})
