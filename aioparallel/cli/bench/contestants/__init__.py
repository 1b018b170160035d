"""Contestants that need nothing but this package: each module is a program of its own (see ``wire.py``)."""

from __future__ import annotations

import sys

from aioparallel.cli.bench.model import Contestant

__all__ = ["builtin_contestants"]


def builtin_contestants() -> dict[str, Contestant]:
    """Them by name."""
    found = (
        contestant("ours", "aioparallel", keeps_key_order=True),
        contestant("getmany", "aiokafka getmany(500), one at a time", keeps_key_order=True),
        contestant("async-for", "aiokafka async for, one at a time", keeps_key_order=True),
        contestant("task-per-record", "aiokafka, a task per record", keeps_key_order=False),
        contestant("ceiling", "the event loop alone, only sleeping", keeps_key_order=False),
    )
    return {one.name: one for one in found}


def contestant(name: str, title: str, *, keeps_key_order: bool) -> Contestant:
    """The one whose module here has this name."""
    module = f"{__name__}.{name.replace('-', '_')}"
    return Contestant(name, title, (sys.executable, "-m", module), keeps_key_order)
