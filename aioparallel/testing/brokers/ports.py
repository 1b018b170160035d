"""Finds free ports on 127.0.0.1."""

from __future__ import annotations

import random
import socket
from typing import Final

__all__ = ["free_ports", "is_free"]

_PORTS: Final = range(20_000, 32_000)
"""Below the ports that Linux (from 32768) and macOS (from 49152) use for outgoing connections. Otherwise a client that
reconnects to a stopped broker could get the broker's own port, connect to itself, and keep the broker from starting."""


def free_ports(count: int) -> list[int]:
    """Different ports that are not in use. Another process may take one before the caller does: be ready to retry."""
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
