"""A request and its response, with the versions that this package speaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Api"]

Q = TypeVar("Q")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Api(Generic[Q, R]):
    """One API of Kafka's protocol. All versions from ``least`` to ``most`` are flexible: request header 2, response
    header 1."""

    name: str
    key: int
    least: int
    most: int
    request: type[Q]
    response: type[R]

    def newest(self, versions: Mapping[int, tuple[int, int]]) -> int | None:
        """The newest version that a broker with these ``versions`` (least and most by API key) speaks as well; None if
        there is none."""
        least, most = versions.get(self.key, (0, -1))
        newest = min(self.most, most)
        return newest if newest >= max(self.least, least) else None
