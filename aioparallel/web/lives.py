"""Services entered and left together: whatever ends the application meanwhile is told to all of them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Protocol

from aioparallel.engine.waiting import to_the_end
from aioparallel.process_signals import ENDING, beside_handlers
from aioparallel.web.keeper import Keeper

__all__ = ["Kept", "begin", "end"]


class Kept(Protocol):
    """A service, as its life needs it."""

    @property
    def keeper(self) -> Keeper[Any, Any] | None:
        """Of the life that it has, or had last."""

    def new_keeper(self) -> Keeper[Any, Any]:
        """Of a life that begins."""


async def begin(services: Sequence[Kept]) -> None:
    """One after the other. Where one cannot start, those before it end, and what keeps it from that is raised.

    At the server's signal no start is waited for, and none begins: the server then asks for the end, which would wait
    for the starts otherwise.
    """
    begun: list[Kept] = []
    signalled = asyncio.Event()
    try:
        # uvicorn notes a signal, and looks at it when the application's start, or its end, is over.
        with beside_handlers(ENDING, signalled.set):
            for service in services:
                if signalled.is_set():
                    return
                keeper = service.new_keeper()
                begun.append(service)
                await keeper.start(signalled)
    except BaseException:
        await end(begun)
        raise


async def end(services: Collection[Kept]) -> None:
    """All at once: each drains within its ``drain_timeout``. Cancelled meanwhile, or at Ctrl-C, none drains any longer,
    but the rest is done all the same."""
    keepers = [service.keeper for service in services if service.keeper is not None]
    hurry = partial(_stop, keepers, drain=False)
    with beside_handlers((signal.SIGINT,), hurry):
        _stop(keepers, drain=True)
        await to_the_end(_over(keepers), on_cancel=hurry)


def _stop(keepers: Collection[Keeper[Any, Any]], *, drain: bool) -> None:
    for keeper in keepers:
        keeper.stop(drain)


async def _over(keepers: Collection[Keeper[Any, Any]]) -> None:
    for keeper in keepers:
        await keeper.over()
