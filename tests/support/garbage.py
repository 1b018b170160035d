"""The garbage collector, in a process that holds thousands of tests."""

from __future__ import annotations

import gc

__all__ = ["set_aside"]


def set_aside() -> None:
    """Leave all that lives now out of collections, for good: whoever collects after that, to see what a test has left
    behind, walks what came since, in milliseconds. With the heap of all tests it is half a second each time."""
    gc.collect()
    gc.freeze()
