"""What is under way at each host, and which of them have asked for patience."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from aioparallel.engine.gates import Gate, enter_all
from aioparallel.history import history_of
from aioparallel.http.requests import origin_of
from aioparallel.records import Record

__all__ = ["Hosts"]

_AFTER_SCHEME = len("https://")
# Hosts that are remembered though nothing is under way there.
_IDLE = 1_000


class Hosts:
    """A gate for each host (scheme, host, port). ``limit``: requests under way at each, at most."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._gates: dict[str, Gate] = {}
        self._most = _IDLE
        self._first: Record[Any, Any] | None = None  # keeps its places at some while it waits at one, or did

    def of_url(self, url: str) -> Gate:
        """Of the host that this address names."""
        # As nearly all are written: then this is its origin already.
        end = url.find("/", _AFTER_SCHEME)
        return (self._gates.get(url[:end]) if end > 0 else None) or self.gate(origin_of(url))

    def gate(self, origin: str) -> Gate:
        """Of this host."""
        found = self._gates.get(origin)
        if found is None:
            if len(self._gates) >= self._most:
                self._gates = {name: gate for name, gate in self._gates.items() if not gate.is_idle}  # it has no memory
                self._most = len(self._gates) + _IDLE
            found = self._gates[origin] = Gate(origin, self._limit)
        return found

    def enter(self, origins: Collection[str]) -> list[Gate]:
        """One request goes to each of these. Raises NoRoom where one of them has no room; then nothing is under way."""
        gates = [self.gate(origin) for origin in origins]
        self._gates.update({gate.name: gate for gate in gates})  # one made for the next may have pushed one out
        enter_all(gates, self._may_keep)
        return gates

    def _may_keep(self, record: Record[Any, Any]) -> bool:
        """One at a time: several could wait for each other."""
        first = self._first
        if first is not None and first is not record and any(gate.keeps(first) for gate in history_of(first).kept):
            return False
        self._first = record
        return True

    def close(self) -> None:
        """Wake nobody any more."""
        self._first = None
        for gate in self._gates.values():
            gate.close()
