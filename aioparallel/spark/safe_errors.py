"""Errors that the JVM can receive. All errors leave a Python process of Spark through this function.

A worker sends the traceback to the JVM as UTF-8. For text that cannot be encoded (a lone surrogate, as in the name of a
file) it sends nothing, and the JVM waits for ever; many megabytes would be passed on to the driver and its logs.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

from aioparallel.records.errors import TaskFailed
from aioparallel.spark.values import MAX_TEXT, text_of, writable

__all__ = ["safe_errors"]


@contextlib.contextmanager
def safe_errors() -> Iterator[None]:
    """Passes errors on, or raises TaskFailed with their text if it cannot be sent unchanged."""
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException as error:
        text = "".join(traceback.format_exception(error))  # as the worker sends it
        safe = writable(text)
        if safe == text:
            raise
        raise TaskFailed(f"{writable(text_of(error), MAX_TEXT // 2)}\n\nOriginal error:\n{safe}") from None
