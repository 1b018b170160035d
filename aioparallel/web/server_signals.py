"""Ends the application by the signals that end its server."""

from __future__ import annotations

import asyncio
import signal

__all__ = ["end_application"]


def end_application() -> bool:
    """Raise SIGTERM, or SIGINT if nothing handles SIGTERM, as ``asyncio.run()`` handles Ctrl-C. Returns False and
    does nothing if neither has a handler: the signal would kill the process.

    Raised in a step of its own: an exception of the handler passes through the event loop.
    """
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN, None):
        number = signal.SIGTERM
    elif signal.getsignal(signal.SIGINT) not in (signal.SIG_DFL, signal.SIG_IGN, None, signal.default_int_handler):
        number = signal.SIGINT
    else:
        return False
    asyncio.get_running_loop().call_soon(signal.raise_signal, number)
    return True
