"""Deferred completion: a record that goes on after its handler has returned.

The worker waits for the handle, so a deferred record counts as in flight and its lane stays closed: order and bounds
hold as for any other.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from aioparallel.errors import ConfigurationError, ConsumerStateError, DeferralTimeout, InvalidOutput, Reject
from aioparallel.history import history_of
from aioparallel.records import Record
from aioparallel.wording import kind_of

__all__ = ["Deferral", "defer"]


class Deferral:
    """The handle of one deferred record: tell it once how the record ended; what is said later changes nothing.

    Its methods may be called from any thread. Each returns whether it was the first word.
    """

    __slots__ = ("_future", "_loop", "_said", "_thread", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._future: asyncio.Future[tuple[object, Exception | None]] = self._loop.create_future()
        self._said = threading.Lock()

    def complete(self, outputs: object = None) -> bool:
        """It succeeded. ``outputs``: what the handler could have returned, to be produced first. (A handler that defers
        returns None: outputs from both would have no order, and those of one would be easily forgotten.)"""
        return self._say(outputs, None)

    def fail(self, error: Exception) -> bool:
        """The attempt failed: the record follows the failure policy."""
        return self._say(None, error)

    def reject(self, reason: str) -> bool:
        """It will never succeed: no more tries."""
        return self._say(None, Reject(reason))

    def _say(self, outputs: object, error: Exception | None) -> bool:
        if not self._said.acquire(blocking=False):
            return False
        if threading.get_ident() == self._thread:
            self._set(outputs, error)
        else:
            try:
                self._loop.call_soon_threadsafe(self._set, outputs, error)
            except RuntimeError:
                return False  # the event loop is closed: nobody waits any more
        return True

    def _set(self, outputs: object, error: Exception | None) -> None:
        if not self._future.done():  # else too late: timed out, or cancelled with its partition
            self._future.set_result((outputs, error))

    async def wait(self, returned: object) -> object:
        """What it was completed with. ``returned``: by the handler. Raises what it failed with, DeferralTimeout, or
        InvalidOutput when the handler has returned something too. For the worker."""
        try:
            if returned is not None and returned != []:  # what an async generator without outputs comes to
                raise InvalidOutput(
                    f"the handler returned {kind_of(returned)} for a record that it has deferred, so its "
                    "outputs belong to complete(outputs) of the deferral; return None"
                )
            done, _ = await asyncio.wait((self._future,), timeout=self.seconds)
            if not done:
                raise DeferralTimeout(self.seconds)
            outputs, error = self._future.result()
            if error is not None:
                raise error
            return outputs
        finally:
            self.forget()

    def forget(self) -> None:
        """Every word from now on is too late."""
        self._said.acquire(blocking=False)
        self._future.cancel()


def defer(record: Record[Any, Any], seconds: float) -> Deferral:
    """Make the record's handle. Raises ConsumerStateError when this attempt has one already."""
    if isinstance(seconds, bool) or not 0 < seconds < 1e7:
        raise ConfigurationError("defer timeout", seconds, "must be seconds, more than 0, at most 10,000,000")
    if getattr(getattr(record, "_source", None), "batching", None) is not None:
        raise ConsumerStateError(f"{record!r} is handled in a batch, whose records end together: defer() is for others")
    history = history_of(record)
    if history.deferral is not None:
        raise ConsumerStateError(f"{record!r} is deferred already: defer() once an attempt")
    history.deferral = deferral = Deferral(float(seconds))
    return deferral
