"""Running one handler inside its own copy of the context, within a worker's task.

The worker makes the first step itself, ``context.run(coroutine.send, None)``: a handler that never suspends
ends there. One that does suspend goes on through :func:`resume`, which passes what it yields (futures) up to
the worker's task, and what the task sends or throws back down, each time inside the same context.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any

__all__ = ["resume", "run_in"]


@types.coroutine
def resume(coroutine: Coroutine[Any, Any, object], context: Context, yielded: object) -> Generator[Any, Any, object]:
    """Await the rest of ``coroutine``, whose first step in ``context`` has yielded ``yielded``; its result."""
    run, send, throw = context.run, coroutine.send, coroutine.throw
    try:
        while True:
            try:
                sent = yield yielded
            except GeneratorExit:
                run(coroutine.close)
                raise
            except BaseException as error:
                yielded = run(throw, error)
            else:
                yielded = run(send, sent)
    except StopIteration as stop:
        return stop.value


async def run_in(context: Context, coroutine: Coroutine[Any, Any, object]) -> object:
    """Await all of ``coroutine`` inside ``context``."""
    try:
        yielded = context.run(coroutine.send, None)
    except StopIteration as stop:
        return stop.value
    return await resume(coroutine, context, yielded)
