"""What handlers share: clients and pools that are opened with the consumer and closed with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import TypeVar

from aioparallel.errors import ConsumerStateError
from aioparallel.options import Resource

__all__ = ["Resources", "resource"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds that closing one of them may take.
_CLOSE_TIMEOUT = 10.0
_reachable: ContextVar[Mapping[str, object]] = ContextVar("aioparallel_resources")


def resource(name: str, kind: type[T] = object) -> T:  # type: ignore[assignment]
    """A resource of the consumer whose handler (middleware, dead-letter function) calls this.

    ``kind``: its class, for type checkers and checked. Raises ConsumerStateError when there is no such resource, or it
    is of another class.
    """
    found = _reachable.get({})
    if name not in found:
        known = ", ".join(found) if found else "none"
        raise ConsumerStateError(
            f"no resource {name!r} here (there are: {known}); give it to the consumer as resources={{{name!r}: ...}}, "
            "and call resource() within a handler"
        )
    value = found[name]
    if not isinstance(value, kind):
        raise ConsumerStateError(f"resource {name!r} is a {type(value).__name__}, not a {kind.__name__}")
    return value


class Resources:
    """The opened resources of one consumer."""

    def __init__(self, factories: Mapping[str, Resource]) -> None:
        self._factories = factories
        self._open: list[tuple[str, AbstractAsyncContextManager[object]]] = []
        self.opened: dict[str, object] = {}

    async def open(self, timeout: float) -> None:
        """Open all, in their order, each within ``timeout`` seconds. What fails names the resource; closing what is
        open is up to the caller."""
        for name, factory in self._factories.items():
            try:
                manager = _checked(factory())
                async with asyncio.timeout(timeout):
                    self.opened[name] = await manager.__aenter__()
            except BaseException as error:
                error.add_note(f"while opening resource {name!r}")
                raise
            self._open.append((name, manager))

    async def close(self) -> None:
        """Close all, the last first; what goes wrong is logged."""
        while self._open:
            name, manager = self._open.pop()
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    await manager.__aexit__(None, None, None)
            except Exception:
                logger.exception("resource %r did not close", name, extra={"action": "resource_close_failed"})

    def reach(self) -> None:
        """Let :func:`resource` find them in the current context, and in those copied from it."""
        _reachable.set(self.opened)


def _checked(manager: object) -> AbstractAsyncContextManager[object]:
    if isinstance(manager, AbstractAsyncContextManager):
        return manager
    raise TypeError(f"its function made a {type(manager).__name__}, which is no async context manager")
