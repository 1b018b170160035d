"""The room around every command: how it prints and asks, and what it says when it cannot go on."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from typing import Final

from rich.console import Console
from rich.prompt import Confirm
from rich.text import Text

from aioparallel.errors import AioparallelError, ConfigurationError

__all__ = [
    "ExtraMissing",
    "age",
    "as_typed",
    "confirm",
    "counted",
    "local_time",
    "make_console",
    "plain_text",
    "require_extra",
    "say",
    "say_error",
]

WIDTH_WITHOUT_TERMINAL: Final = 160  # columns


class ExtraMissing(AioparallelError):
    """The command needs packages that are not installed; the message says what to install."""


def make_console(*, stderr: bool = False) -> Console:
    """Standard output, or standard error: for what is said about the work, so that the other stays fit for a pipe."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDTH_WITHOUT_TERMINAL)


def say(sentence: str) -> None:
    """To standard error."""
    make_console(stderr=True).print(plain_text(sentence), markup=False, highlight=False, soft_wrap=True)


def say_error(message: str) -> None:
    """To standard error, on one line."""
    line = Text.assemble(("ERROR ", "bold red"), plain_text(message, one_line=True))
    make_console(stderr=True).print(line, soft_wrap=True, highlight=False)


def confirm(question: str) -> bool:
    """Ask on the terminal; nothing but yes is yes. Raises CancelledError after Ctrl-C.

    Blocks the loop: nothing else goes on meanwhile, and no membership is at stake. asyncio's own handler of SIGINT
    only cancels the task, which would not end the waiting for an answer; so Python's is put in its place.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return Confirm.ask(Text(question), console=make_console(stderr=True), default=False)
    except (KeyboardInterrupt, EOFError):
        raise asyncio.CancelledError from None
    finally:
        signal.signal(signal.SIGINT, before)


def require_extra(command: str, modules: Sequence[str]) -> None:
    """Raise ExtraMissing when something is not there that the command needs. Its extra has its name."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ExtraMissing(
            f"aioparallel {command} needs {', '.join(missing)}, not installed here: "
            f"pip install 'aioparallel[{command}]'"
        )


def as_typed(error: AioparallelError, flags: Mapping[str, str]) -> str:
    """Its message with options named as they are typed. ``flags``: by the option's name in Python, its flag here."""
    if not isinstance(error, ConfigurationError):
        return _with_flags(str(error), flags)
    # As in `client_options['sasl_mechanism']`, or `RetryPolicy jitter`.
    name, *key = re.findall(r"\w+", error.option.rpartition(" ")[2])
    option = " ".join([flags[name], *key]) if name in flags else error.option
    found = f"without {option}" if error.value is False else f"{option}={error.value!r}"
    return f"{found}: {_with_flags(error.allowed, flags)}"


def _with_flags(text: str, flags: Mapping[str, str]) -> str:
    return re.sub(r"[a-z]+_\w+", lambda found: flags.get(found[0], found[0]), text)


def counted(count: int, noun: str) -> str:
    """A number and its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def local_time(at: float) -> str:
    """To the second, in this machine's zone. ``at``: seconds since the epoch."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def age(seconds: float) -> str:
    """How long ago, in the largest unit that makes one or more."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return "now"


def plain_text(text: str, *, one_line: bool = False) -> str:
    """Without what would steer the terminal: what strangers wrote may hold anything."""
    if one_line:
        text = " ".join(text.split())
    return "".join(one if one.isprintable() or one in "\n\t" else f"\\x{ord(one):02x}" for one in text)
