"""Whether objects of aiokafka are as our protocols describe them."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from typing_extensions import get_protocol_members

__all__ = ["missing"]


def missing(live: object, described: type) -> list[str]:
    """What the protocol names and the object does not offer as described."""
    names = sorted(get_protocol_members(described))
    wrong = [name for name in names if not hasattr(live, name)]
    for name in names:
        ours = inspect.getattr_static(described, name, None)
        if name not in wrong and inspect.isfunction(ours) and not takes(getattr(live, name), ours):
            wrong.append(f"{name}{inspect.signature(getattr(live, name))}")
    return wrong


def takes(theirs: Callable[..., object], ours: Callable[..., object]) -> bool:
    """Whether theirs can be called as ours is declared."""
    declared = set(inspect.signature(ours).parameters) - {"self"}
    parameters = inspect.signature(theirs).parameters.values()
    needed = {p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    return needed <= declared <= {p.name for p in parameters}
