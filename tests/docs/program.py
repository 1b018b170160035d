"""Runs a block as a program of its own: ``python -m tests.docs.program FILE ENDS``. It may ``await`` at its top, as in
a notebook; ``consumer`` is stopped when that many of its records have ended."""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
import threading
import time
from pathlib import Path
from typing import Any

from aioparallel import ConsumerStateError, ParallelConsumer

_LOOKS = 0.01


def _ended(consumer: ParallelConsumer[Any, Any] | None) -> int:
    try:
        return consumer.stats().ended if consumer is not None else 0
    except ConsumerStateError:  # it does not run yet
        return 0


async def _run(code: Any, names: dict[str, Any], ends: int) -> None:
    running = asyncio.ensure_future(eval(code, names))
    while ends and not running.done() and _ended(names.get("consumer")) < ends:
        await asyncio.sleep(_LOOKS)
    if ends and not running.done():
        names["consumer"].stop()
    await running


def _stop_after(names: dict[str, Any], ends: int) -> None:
    """Of a program whose consumer runs a loop of its own (``run_sync``)."""
    while _ended(names.get("consumer")) < ends:
        time.sleep(_LOOKS)
    names["consumer"].stop()


def main(file: Path, ends: int) -> None:
    """Run it to its end."""
    code = compile(file.read_text(), file, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, Any] = {"__name__": "__main__"}
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(_run(code, names, ends))
    else:
        if ends:
            threading.Thread(target=_stop_after, args=(names, ends), daemon=True).start()
        exec(code, names)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
