"""Resources of handlers: clients and pools that are opened and closed with the consumer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import TypeVar

from aioparallel.config.handling import Resource
from aioparallel.event_loop.left_behind import leave_behind
from aioparallel.event_loop.waiting import OutOfTime, within
from aioparallel.records.errors import ConsumerStateError, WorkCancelled
from aioparallel.records.user_errors import refuse_coroutine
from aioparallel.records.wording import kind_of

__all__ = ["Resources", "reach", "resource"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Most seconds to close a resource.
_CLOSE_TIMEOUT = 10.0
# Further seconds to end after the cancellation at that time-out.
_CANCEL_GRACE = 0.5
_reachable: ContextVar[Mapping[str, object]] = ContextVar("aioparallel_resources")


def resource(name: str, kind: type[T] = object) -> T:  # type: ignore[assignment]
    """A resource of the consumer, for its handlers, middleware and dead-letter functions.

    ``kind``: the expected class, also for type checkers. Raises ConsumerStateError if there is no such resource or it
    has another class.
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
    """Let :func:`resource` find these in the current context and its copies, in addition to those it finds already."""
    _reachable.set({**_reachable.get({}), **opened})


class Resources:
    """The opened resources of one consumer."""

    def __init__(self, factories: Mapping[str, Resource]) -> None:
        self._factories = factories
        self._open: list[_Lifetime] = []
        self.opened: dict[str, object] = {}

    async def open(self, timeout: float) -> None:
        """Open all in order, each within ``timeout`` seconds. An error names its resource; the caller closes the others
        then."""
        for name, factory in self._factories.items():
            lifetime = _Lifetime(name, factory)
            self._open.append(lifetime)
            self.opened[name] = await lifetime.open(timeout)

    async def close(self) -> None:
        """Close all in reverse order and log errors. Each has a deadline, even one that ignores its cancellation."""
        while self._open:
            await self._open.pop().close()

    def reach(self) -> None:
        """Let :func:`resource` find these in the current context."""
        reach(self.opened)


class _Lifetime:
    """Opens and closes a resource in one task of its own: task groups and cancel scopes require one task, and a
    cancellation of the consumer's start or end must not reach the closing."""

    def __init__(self, name: str, factory: Resource) -> None:
        self._name = name
        self._factory = factory
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self, timeout: float) -> object:
        """The opened resource. Raises the error of opening, or TimeoutError, also if it ignores its cancellation."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()
        self._task = loop.create_task(self._live(timeout, opened), name=f"aioparallel-resource-{self._name}")
        try:
            # wait() does not pass a cancellation on to the future. At the time-out the task is cancelled from within;
            # if it ignores that, close() handles it.
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
        """Returns when the resource is closed, or at the time-out."""
        assert self._task is not None
        self._closing.set()
        done, _ = await asyncio.wait((self._task,), timeout=_CLOSE_TIMEOUT + _CANCEL_GRACE)
        if not done:
            logger.error(
                "resource %r did not close within %g s and ignores its cancellation; it is left behind",
                self._name,
                _CLOSE_TIMEOUT,
                extra={"action": "resource_close_failed"},
            )
            leave_behind((self._task,))

    async def _live(self, timeout: float, opened: asyncio.Future[tuple[object, BaseException | None]]) -> None:
        try:
            manager = _checked(self._factory())
            value = await within(timeout, manager.__aenter__())
        except OutOfTime as error:
            late = TimeoutError(f"resource {self._name!r} did not open within {timeout:g} s")
            late.__cause__ = error
            opened.set_result((None, late))
            return
        except BaseException as error:
            opened.set_result((None, error))
            return
        opened.set_result((value, None))
        with contextlib.suppress(asyncio.CancelledError):  # the loop shuts down: close it now
            await self._closing.wait()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await manager.__aexit__(None, None, None)
        except (Exception, asyncio.CancelledError):  # cancelled by its own code, or by the loop's shutdown
            logger.exception("resource %r did not close", self._name, extra={"action": "resource_close_failed"})


def _checked(manager: object) -> AbstractAsyncContextManager[object]:
    if isinstance(manager, AbstractAsyncContextManager):
        return manager
    refuse_coroutine(manager)
    raise TypeError(f"its function returned {kind_of(manager)}, not an async context manager")
