"""Printing and asking on the terminal, and errors in the words of the command line."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from typing import Final

from rich.console import Console
from rich.prompt import Confirm
from rich.text import Text

from aioparallel.records.errors import AioparallelError, ConfigurationError

__all__ = [
    "ExtraMissing",
    "age",
    "as_typed",
    "confirm",
    "counted",
    "far_time",
    "has_terminal",
    "local_time",
    "make_console",
    "moment_of",
    "plain_text",
    "require_consent",
    "require_extra",
    "say",
    "say_error",
]

WIDTH_WITHOUT_TERMINAL: Final = 160  # columns


class ExtraMissing(AioparallelError):
    """The command needs packages that are not installed; the message says which extra has them."""


def make_console(*, stderr: bool = False) -> Console:
    """Standard output; or standard error for messages about the work, which must not get into a pipe."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDTH_WITHOUT_TERMINAL)


def say(sentence: str) -> None:
    """Print to standard error."""
    make_console(stderr=True).print(plain_text(sentence), markup=False, highlight=False, soft_wrap=True)


def say_error(message: str) -> None:
    """Print an error to standard error, on one line."""
    line = Text.assemble(("ERROR ", "bold red"), plain_text(message, one_line=True))
    make_console(stderr=True).print(line, soft_wrap=True, highlight=False)


def confirm(question: str) -> bool:
    """Ask on the terminal; anything but yes is no. Raises CancelledError after Ctrl-C.

    Blocks the event loop, which matters to nothing here. asyncio's SIGINT handler would only cancel the task and not
    end the input, so Python's own handler is set meanwhile.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return Confirm.ask(Text(question), console=make_console(stderr=True), default=False)
    except (KeyboardInterrupt, EOFError):
        raise asyncio.CancelledError from None
    finally:
        signal.signal(signal.SIGINT, before)


def has_terminal() -> bool:
    """Whether somebody can type into standard input."""
    return sys.stdin is not None and sys.stdin.isatty()


def require_consent(instead: str, has_agreed: bool) -> None:
    """Raise ConfigurationError if the user has not agreed and cannot be asked. ``instead``: the flags for that."""
    if not (has_agreed or has_terminal()):
        raise ConfigurationError("yes", False, f"standard input is no terminal, so there is nobody to ask; {instead}")


def require_extra(command: str, modules: Sequence[str]) -> None:
    """Raise ExtraMissing if a module is not installed. The extra has the name of the command."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ExtraMissing(
            f"aioparallel {command} needs {', '.join(missing)}, not installed here: "
            f"pip install 'aioparallel[{command}]'"
        )


def as_typed(error: AioparallelError, flags: Mapping[str, str]) -> str:
    """The error's message with options as they are typed. ``flags``: flags by their names in Python."""
    if not isinstance(error, ConfigurationError):
        return _with_flags(str(error), flags)
    # As in `client_options['sasl_mechanism']`, or `RetryPolicy jitter`.
    name, *key = re.findall(r"\w+", error.option.rpartition(" ")[2])
    option = " ".join([flags[name], *key]) if name in flags else error.option
    found = f"without {option}" if error.value is False else f"{option}={error.value!r}"
    return f"{found}: {_with_flags(error.allowed, flags)}"


def _with_flags(text: str, flags: Mapping[str, str]) -> str:
    if (protocol := flags.get("security_protocol")) is not None:  # the fields of Security are flags of their own
        text = text.replace(", mechanism=...)", f") {flags.get('mechanism', '')} ...")
        text = re.sub(r'security=Security\("(\w+)"\)', rf"{protocol} \1", text)
        text = re.sub(r",? in Security\b", "", text.replace("leave security out", f"leave {protocol} out"))
    # As in "state_topic= names it".
    return re.sub(r"([a-z]+_\w+)(=(?= ))?", lambda found: flags.get(found[1], found[0]), text)


def counted(count: int, noun: str) -> str:
    """A number with its noun, in plural if needed."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def local_time(at: float) -> str:
    """A time in the local zone, to the second. ``at``: seconds since the epoch."""
    moment = moment_of(at)
    return far_time(at) if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")


def moment_of(at: float) -> datetime | None:
    """The same with its zone; None beyond the year 9999, as for timestamps in microseconds by mistake."""
    try:
        return datetime.fromtimestamp(at).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def far_time(at: float) -> str:
    """How to write a time that has no date."""
    return f"@{at:.3f}"


def age(seconds: float) -> str:
    """How long ago, in the largest unit of which there is at least one."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return "now"


def plain_text(text: str, *, one_line: bool = False) -> str:
    """The text without control characters, which foreign data may hold and which can control a terminal."""
    if one_line:
        text = " ".join(text.split())
    return "".join(one if one.isprintable() or one in "\n\t" else f"\\x{ord(one):02x}" for one in text)
