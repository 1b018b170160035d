"""Ends the application as its server ends it."""

from __future__ import annotations

import asyncio
import signal

__all__ = ["end_application"]


def end_application() -> bool:
    """End the process as its server ends it: SIGTERM, or, where nobody handles that, as Ctrl-C ends ``asyncio.run()``.

    In a step of the loop of its own, for what the handler raises there falls through the loop. False: nobody has placed
    a handler for either, so a signal would kill what has only been tried out; nothing is done then.
    """
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN, None):
        number = signal.SIGTERM
    elif signal.getsignal(signal.SIGINT) not in (signal.SIG_DFL, signal.SIG_IGN, None, signal.default_int_handler):
        number = signal.SIGINT
    else:
        return False
    asyncio.get_running_loop().call_soon(signal.raise_signal, number)
    return True
