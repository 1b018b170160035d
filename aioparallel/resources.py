"""What handlers share: clients and pools that are opened with the consumer and closed with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import TypeVar

from aioparallel.errors import ConsumerStateError, WorkCancelled
from aioparallel.handling import Resource
from aioparallel.left_behind import leave_behind
from aioparallel.wording import kind_of

__all__ = ["Resources", "reach", "resource"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds that closing one of them may take.
_CLOSE_TIMEOUT = 10.0
# Seconds that it has to end after it was cancelled, when that time is up.
_CANCEL_GRACE = 0.5
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
            f"no resource {name!r} here (there are: {known}); give it as resources={{{name!r}: ...}}, "
            "and call resource() within a handler"
        )
    value = found[name]
    if not isinstance(value, kind):
        raise ConsumerStateError(f"resource {name!r} is {kind_of(value)}, not {kind.__name__}")
    return value


def reach(opened: Mapping[str, object]) -> None:
    """Let :func:`resource` find these in the current context, and in those copied from it; beside those that can be
    found there already, of a handler that this is within."""
    _reachable.set({**_reachable.get({}), **opened})


class Resources:
    """The opened resources of one consumer."""

    def __init__(self, factories: Mapping[str, Resource]) -> None:
        self._factories = factories
        self._open: list[_Lifetime] = []
        self.opened: dict[str, object] = {}

    async def open(self, timeout: float) -> None:
        """Open all, in their order, each within ``timeout`` seconds. What fails names the resource; closing what is
        open is up to the caller."""
        for name, factory in self._factories.items():
            lifetime = _Lifetime(name, factory)
            self._open.append(lifetime)
            self.opened[name] = await lifetime.open(timeout)

    async def close(self) -> None:
        """Close all, the last first; what goes wrong is logged. Each has its deadline, also one that ignores being
        cancelled."""
        while self._open:
            await self._open.pop().close()

    def reach(self) -> None:
        """:func:`reach` for these."""
        reach(self.opened)


class _Lifetime:
    """One resource, opened and closed in one task of its own: task groups and cancel scopes need that, and no
    cancellation of those who open and close the consumer reaches into its closing."""

    def __init__(self, name: str, factory: Resource) -> None:
        self._name = name
        self._factory = factory
        self._unwanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self, timeout: float) -> object:
        """The opened resource. Raises what opening it raises, or TimeoutError, also where it ignores its deadline."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()
        self._task = loop.create_task(self._live(timeout, opened), name=f"aioparallel-resource-{self._name}")
        try:
            # Not the future itself: a cancellation of this wait is none of it. In time it is cancelled within its task;
            # one that ignores that is left to close().
            done, _ = await asyncio.wait((opened,), timeout=timeout + _CANCEL_GRACE)
        except asyncio.CancelledError:
            self._task.cancel()  # close() waits for it
            raise
        if not done:
            raise TimeoutError(
                f"resource {self._name!r} did not open within {timeout:g} s, and ignores its cancellation"
            )
        value, error = opened.result()
        if isinstance(error, asyncio.CancelledError):
            raise WorkCancelled(f"opening resource {self._name!r}") from error
        if error is not None:
            error.add_note(f"while opening resource {self._name!r}")
            raise error
        return value

    async def close(self) -> None:
        """Returns when it is closed, or its time is up."""
        assert self._task is not None
        self._unwanted.set()
        done, _ = await asyncio.wait((self._task,), timeout=_CLOSE_TIMEOUT + _CANCEL_GRACE)
        if not done:
            logger.error(
                "resource %r did not close within %g s, and ignores that it was cancelled; it is left behind",
                self._name,
                _CLOSE_TIMEOUT,
                extra={"action": "resource_close_failed"},
            )
            leave_behind((self._task,))

    async def _live(self, timeout: float, opened: asyncio.Future[tuple[object, BaseException | None]]) -> None:
        timer = asyncio.timeout(timeout)
        try:
            manager = _checked(self._factory())
            async with timer:
                value = await manager.__aenter__()
        except TimeoutError as error:
            if timer.expired():
                late = TimeoutError(f"resource {self._name!r} did not open within {timeout:g} s")
                late.__cause__ = error
                error = late
            opened.set_result((None, error))
            return
        except BaseException as error:
            opened.set_result((None, error))
            return
        opened.set_result((value, None))
        with contextlib.suppress(asyncio.CancelledError):  # the loop is shutting down: close it now
            await self._unwanted.wait()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await manager.__aexit__(None, None, None)
        except (Exception, asyncio.CancelledError):  # the last is its own, or the loop shuts down
            logger.exception("resource %r did not close", self._name, extra={"action": "resource_close_failed"})


def _checked(manager: object) -> AbstractAsyncContextManager[object]:
    if isinstance(manager, AbstractAsyncContextManager):
        return manager
    raise TypeError(f"its function made {kind_of(manager)}, which is no async context manager")
