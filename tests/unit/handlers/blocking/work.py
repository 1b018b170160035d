"""Functions that the tests run in processes, which import this module."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aioparallel import Batch, Record, RetryLater, in_processes


class Awkward(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")


class SlowToPickle:
    """Takes a while to pickle."""

    begun = False

    def __reduce__(self) -> tuple[object, ...]:
        SlowToPickle.begun = True
        time.sleep(0.5)
        return int, (21,)


class Simple(Exception):
    """An exception that can be pickled."""


def double(number: int) -> int:
    return 2 * number


def place(_: object) -> int:
    return os.getpid()


def die(how: object) -> object:
    """Ends the process: with an exit code, or a signal if negative. Otherwise returns the process id."""
    if isinstance(how, int):
        if how < 0:
            os.kill(os.getpid(), -how)
            time.sleep(60)
        os._exit(how)
    time.sleep(0.01)
    return os.getpid()


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def hang_once(folder: Path) -> str:
    """The first attempt never ends, and leaves its process id."""
    pid = folder / "pid"
    if not pid.exists():
        pid.write_text(str(os.getpid()))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1_000)
    return "second"


def fail(kind: str) -> object:
    match kind:
        case "simple":
            raise Simple("plain")
        case "awkward":
            raise Awkward(7, "two arguments")
        case "later":
            raise RetryLater(0.01, "not yet")
        case "short" | "short, awkward":
            try:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            except OSError as error:
                raise (Simple("plain") if kind == "short" else Awkward(7, "two arguments")) from error
        case "exit":
            raise SystemExit(5)
    return lambda: kind


class Unspeakable(Exception):
    """Its text raises an exception."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __reduce__(self) -> tuple[object, ...]:
        raise RuntimeError("nor this")


def fail_each(batch: Batch[Record[Any, Any]]) -> None:
    """Fails each record, with exceptions that cannot be pickled."""
    first, second = batch
    batch.fail(first, Unspeakable())
    try:
        fail("short")
    except Simple as error:
        batch.fail(second, error)


def look(record: Record[Any, Any]) -> tuple[object, ...]:
    return record.place, record.key, record.value, record.headers, record.timestamp, record.attempt, record.raw_value


def sum_up(numbers: list[int]) -> int:
    return sum(numbers)


class Sum:
    """An item that is sent as a payload, and makes a value of the reply."""

    def __init__(self, *numbers: int) -> None:
        self.unpicklable = lambda: 0
        self.numbers = numbers

    def __cross__(self) -> object:
        return Numbers(self.numbers)

    def __returned__(self, reply: int) -> str:
        return f"{reply} of {len(self.numbers)}"


class Numbers:
    def __init__(self, numbers: tuple[int, ...]) -> None:
        self.numbers = numbers

    def __run__(self, function: Callable[[Any], Any]) -> object:
        return sum(function(number) for number in self.numbers)


@in_processes(processes=1)
def decorated(number: int) -> int:
    return number + 1


def original(number: int) -> int:
    return number


hidden = original


def original(number: int) -> int:  # type: ignore[no-redef]
    return -number
