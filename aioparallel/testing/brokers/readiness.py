"""Checks whether a broker answers, with an ApiVersions request, and finds free ports."""

from __future__ import annotations

import random
import socket
import struct
from typing import Final

__all__ = ["answers", "free_port", "free_ports", "is_free"]

_API_VERSIONS: Final = 18
_CORRELATION_ID: Final = 7
_REQUEST: Final = struct.pack(">ihhih", 10, _API_VERSIONS, 0, _CORRELATION_ID, -1)
"""ApiVersions version 0: length, api key, version, correlation id, null client id (Kafka protocol guide)."""

_PORTS: Final = range(20_000, 32_000)
"""Below the ports that Linux (from 32768) and macOS (from 49152) use for outgoing connections. Otherwise a client that
reconnects to a stopped broker could get the broker's own port, connect to itself, and keep the broker from starting."""


def answers(host: str, port: int, timeout: float) -> bool:
    """Whether a Kafka broker answers there within ``timeout`` seconds for each step. Raises no OSError."""
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(_REQUEST)
            answer = b""
            while len(answer) < 10:
                data = connection.recv(4096)
                if not data:
                    return False
                answer += data
    except OSError:
        return False
    _, correlation_id, error = struct.unpack(">iih", answer[:10])
    return bool(correlation_id == _CORRELATION_ID and error == 0)


def free_port() -> int:
    """A port that is not in use. Another process may take it before the caller does, so be ready to retry."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """That many different free ports."""
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"no {count} free ports in {_PORTS.start} to {_PORTS.stop - 1} on 127.0.0.1")


def is_free(port: int) -> bool:
    """Whether nothing listens on this port of 127.0.0.1."""
    with socket.socket() as probe:
        # As the broker will do: old connections in TIME_WAIT do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
