"""Errors whose text the JVM can get: the one door through which all of them leave a Python process of Spark's.

A worker writes the traceback to the JVM as UTF-8. Of a text that has none (a lone surrogate, as in the name of a file)
it writes nothing, and the JVM waits for ever; one of many megabytes goes on to the driver and into its logs.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

from aioparallel.errors import TaskFailed
from aioparallel.spark.values import MAX_TEXT, text_of, writable

__all__ = ["safe_errors"]


@contextlib.contextmanager
def safe_errors() -> Iterator[None]:
    """Raises what is raised within, or TaskFailed with its text where that cannot be written as it is."""
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException as error:
        text = "".join(traceback.format_exception(error))  # what the worker would write
        safe = writable(text)
        if safe == text:
            raise
        raise TaskFailed(f"{writable(text_of(error), MAX_TEXT // 2)}\n\nAs it was raised:\n{safe}") from None
