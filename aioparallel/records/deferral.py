"""Deferred completion: a record that is not complete when its handler returns.

The worker waits for the handle, so a deferred record counts as in flight and its lane stays closed: order and bounds
hold as for any other.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from aioparallel.records.errors import ConfigurationError, ConsumerStateError, DeferralTimeout, InvalidOutput, Reject
from aioparallel.records.history import history_of
from aioparallel.records.record import Record
from aioparallel.records.wording import kind_of

__all__ = ["Deferral", "defer"]


class Deferral:
    """The handle of one deferred record. The first call of one of its methods decides how the record ends.

    The methods may be called from any thread. Each returns whether it was the first call. Later calls change nothing.
    """

    __slots__ = ("_decided", "_future", "_loop", "_thread", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._future: asyncio.Future[tuple[object, Exception | None]] = self._loop.create_future()
        self._decided = threading.Lock()

    def complete(self, outputs: object = None) -> bool:
        """End the record as succeeded. ``outputs``: anything that a handler may return; it is produced first. The
        handler itself must return None, because outputs from both places would have no order."""
        return self._decide(outputs, None)

    def fail(self, error: Exception) -> bool:
        """Fail the attempt with this error: the record follows the failure policy."""
        return self._decide(None, error)

    def reject(self, reason: str) -> bool:
        """Fail the record for good, without another attempt."""
        return self._decide(None, Reject(reason))

    def _decide(self, outputs: object, error: Exception | None) -> bool:
        if not self._decided.acquire(blocking=False):
            return False
        if threading.get_ident() == self._thread:
            self._set(outputs, error)
        else:
            try:
                self._loop.call_soon_threadsafe(self._set, outputs, error)
            except RuntimeError:
                return False  # the event loop is closed
        return True

    def _set(self, outputs: object, error: Exception | None) -> None:
        if not self._future.done():  # else it has timed out, or was cancelled with its partition
            self._future.set_result((outputs, error))

    async def wait(self, returned: object) -> object:
        """Wait for the end of the record, and return its outputs. The worker calls this. ``returned``: the value that
        the handler returned.

        Raises the error of :meth:`fail` and :meth:`reject`, DeferralTimeout, or InvalidOutput if the handler has
        returned outputs as well.
        """
        try:
            if returned is not None and returned != []:  # [] comes from an async generator without outputs
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
        """Ignore all calls from now on."""
        self._decided.acquire(blocking=False)
        self._future.cancel()


def defer(record: Record[Any, Any], seconds: float) -> Deferral:
    """Make the handle of a record. Raises ConsumerStateError if this attempt has one already."""
    if isinstance(seconds, bool) or not 0 < seconds < 1e7:
        raise ConfigurationError("defer timeout", seconds, "must be seconds, more than 0, at most 10,000,000")
    if getattr(getattr(record, "_source", None), "batching", None) is not None:
        raise ConsumerStateError(f"{record!r} is handled in a batch: defer() works only for records that run alone")
    history = history_of(record)
    if history.deferral is not None:
        raise ConsumerStateError(f"{record!r} is deferred already: call defer() once in an attempt")
    history.deferral = deferral = Deferral(float(seconds))
    return deferral
