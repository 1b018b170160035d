"""The requests in flight at each host, and which hosts have requested a delay."""

from __future__ import annotations

from collections.abc import Collection

from aioparallel.engine.gates import Gate, enter_all
from aioparallel.http.requests import origin_of

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
        self._turn = Gate("several hosts at once", 1)

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
        self._gates.update({gate.name: gate for gate in gates})  # one may have been forgotten for the next
        enter_all(gates, self._turn)
        return gates

    def close(self) -> None:
        """Wake nobody any more."""
        for gate in (self._turn, *self._gates.values()):
            gate.close()
