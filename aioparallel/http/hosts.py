"""A limit on the requests in flight at each host, and the delays that hosts have requested."""

from __future__ import annotations

from collections.abc import Collection

from aioparallel.engine.outcomes.gates import Gate, enter_all
from aioparallel.http.requests import origin_of

__all__ = ["Hosts"]

_AFTER_SCHEME = len("https://")
# Idle hosts that are remembered.
_IDLE = 1_000


class Hosts:
    """A gate for each host (scheme, host, port). ``limit``: most requests in flight at each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._gates: dict[str, Gate] = {}
        self._most = _IDLE
        self._turn = Gate("several hosts at once", 1)

    def of_url(self, url: str) -> Gate:
        """The gate of a URL's host."""
        # Most URLs are written like this, and the part before the path is the origin.
        end = url.find("/", _AFTER_SCHEME)
        return (self._gates.get(url[:end]) if end > 0 else None) or self.gate(origin_of(url))

    def gate(self, origin: str) -> Gate:
        """The gate of a host."""
        found = self._gates.get(origin)
        if found is None:
            if len(self._gates) >= self._most:
                self._gates = {name: gate for name, gate in self._gates.items() if not gate.is_idle}
                self._most = len(self._gates) + _IDLE
            found = self._gates[origin] = Gate(origin, self._limit)
        return found

    def enter(self, origins: Collection[str]) -> list[Gate]:
        """Enter the gates of all these hosts. Raises NoRoom if one is at its limit; then none is entered."""
        gates = [self.gate(origin) for origin in origins]
        self._gates.update({gate.name: gate for gate in gates})  # making the next gate may have dropped an idle one
        enter_all(gates, self._turn)
        return gates

    def close(self) -> None:
        """Wake no records any more."""
        for gate in (self._turn, *self._gates.values()):
            gate.close()
