"""Reads lines without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final

from aioparallel.records.errors import ConfigurationError

__all__ = ["lines_of"]

CHUNK: Final = 256 * 1024
LONGEST: Final = 256 * 1024 * 1024
# Bytes. No broker takes records of the second size, and input without line ends must not fill the memory.


async def lines_of(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Lists of complete lines, without their ends, as they arrive. The last one may lack its end.

    Raises ConfigurationError for a line that is too long for any broker.
    """
    left: list[bytes] = []
    length = 0
    while chunk := await _read(descriptor):
        *whole, rest = chunk.split(b"\n")
        if not whole:
            left.append(rest)
            length += len(rest)
            if length > LONGEST:
                told = f"begins a line that is longer than {LONGEST:,} bytes; is the input a text with line ends?"
                raise ConfigurationError("line", left[0][:40], told)
            continue
        whole[0] = b"".join([*left, whole[0]])
        left, length = [rest], len(rest)
        yield [line.removesuffix(b"\r") for line in whole]
    if last := b"".join(left):
        yield [last.removesuffix(b"\r")]


async def _read(descriptor: int) -> bytes:
    """Read a chunk in a daemon thread: one of the loop's executor would keep the process alive after Ctrl-C while
    nothing comes."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()

    def tell(set_result: Callable[[], None]) -> None:
        if not answer.done():
            set_result()

    def read() -> None:
        try:
            chunk = os.read(descriptor, CHUNK)
        except OSError as failure:
            error = failure
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(tell, lambda: answer.set_exception(error))
            return
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, lambda: answer.set_result(chunk))

    threading.Thread(target=read, name="aioparallel-produce-reading", daemon=True).start()
    return await answer
