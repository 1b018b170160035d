"""A broker's view of its cluster, from a Metadata request to that broker alone.

A client would choose any broker, and wait 40 s for one that hangs.
"""

from __future__ import annotations

import socket
from io import BytesIO
from typing import BinaryIO, Final, NamedTuple

from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Schema, String

__all__ = ["PartitionView", "View", "answers", "ask"]

_METADATA: Final = 3
_VERSION: Final = 7
"""The first version with leader epochs (Kafka protocol guide)."""
_API_VERSIONS: Final = 18
_CORRELATION_ID: Final = 11

_VERSIONS_REQUEST: Final = Schema(
    ("api_key", Int16), ("api_version", Int16), ("correlation_id", Int32), ("client_id", String())
)
_REQUEST: Final = Schema(
    ("api_key", Int16),
    ("api_version", Int16),
    ("correlation_id", Int32),
    ("client_id", String()),
    ("topics", Array(String())),
    ("allow_auto_topic_creation", Boolean),
)
_BROKERS: Final = Array(("node_id", Int32), ("host", String()), ("port", Int32), ("rack", String()))
_PARTITIONS: Final = Array(
    ("error_code", Int16),
    ("partition", Int32),
    ("leader", Int32),
    ("leader_epoch", Int32),
    ("replicas", Array(Int32)),
    ("in_sync", Array(Int32)),
    ("offline_replicas", Array(Int32)),
)
_RESPONSE: Final = Schema(
    ("correlation_id", Int32),
    ("throttle_time_ms", Int32),
    ("brokers", _BROKERS),
    ("cluster_id", String()),
    ("controller_id", Int32),
    (
        "topics",
        Array(("error_code", Int16), ("name", String()), ("is_internal", Boolean), ("partitions", _PARTITIONS)),
    ),
)


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


def answers(host: str, port: int, timeout: float) -> bool:
    """Whether a Kafka broker answers there within ``timeout`` seconds for each step. Raises no OSError.

    The request is ApiVersions, because a listener that requires a login answers it to everybody.
    """
    try:
        answer = _exchange(host, port, _VERSIONS_REQUEST.encode([_API_VERSIONS, 0, _CORRELATION_ID, None]), timeout)
    except OSError:
        return False
    return bool(answer[:6] == Int32.encode(_CORRELATION_ID) + Int16.encode(0))


def ask(host: str, port: int, topic: str | None = None, *, timeout: float) -> View:
    """Request the cluster's metadata, and that of a topic, from one broker.

    Raises OSError if a step takes more than ``timeout`` seconds, or if the answer is incomplete.
    """
    topics = [] if topic is None else [topic]
    request = _REQUEST.encode([_METADATA, _VERSION, _CORRELATION_ID, None, topics, False])
    answer = _exchange(host, port, request, timeout)
    try:
        _, _, brokers, _, _, found = _RESPONSE.decode(BytesIO(answer))
    except ValueError as error:
        raise ConnectionError(f"the broker at {host}:{port} did not answer with metadata") from error
    partitions = {
        number: PartitionView(leader, epoch, frozenset(replicas), frozenset(in_sync))
        for _, number, leader, epoch, replicas, in_sync, _ in (found[0][3] if found else ())
    }
    return View(frozenset(number for number, *_ in brokers), partitions)


def _exchange(host: str, port: int, request: bytes, timeout: float) -> bytes:
    """Send a request on a new connection. Returns the response without its length."""
    with socket.create_connection((host, port), timeout) as connection, connection.makefile("rb") as stream:
        connection.sendall(Int32.encode(len(request)) + request)
        return _read(stream, int.from_bytes(_read(stream, 4), "big"))


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise ConnectionError("the broker closed the connection before it answered")
    return data
