"""What the commands that start processes of their own have in common: what they need, and how they end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Final, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from aioparallel.errors import AioparallelError

__all__ = ["failing_with_a_sentence", "make_console", "require_extra", "until_terminated"]

INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count

Result = TypeVar("Result")


def make_console(width_without_terminal: int) -> Console:
    """The terminal, or so many columns where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=width_without_terminal)


def require_extra(command: str, modules: Sequence[str]) -> None:
    """Leave with what to install when something is not there that the command needs. Its extra has its name."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        typer.echo(
            f"aioparallel {command} needs {', '.join(missing)}, not installed here.\n"
            f"    pip install 'aioparallel[{command}]'",
            err=True,
        )
        raise typer.Exit(1)


@contextmanager
def failing_with_a_sentence(command: str, console: Console) -> Iterator[None]:
    """What the user can do something about ends the command with a message, not with a traceback."""
    try:
        yield
    except (AioparallelError, OSError) as error:
        console.print(Text.assemble(("ERROR ", "bold red"), str(error)))
        raise typer.Exit(1) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print(f"Stopped; every process that the {command} started has ended.")
        raise typer.Exit(INTERRUPTED) from None


async def until_terminated(work: Awaitable[Result]) -> Result:
    """Do the work; SIGTERM ends it as Ctrl-C does, by cancelling it, so that everything is closed in its order."""
    task = asyncio.current_task()
    assert task is not None  # a coroutine that runs has one
    with suppress(NotImplementedError):  # Windows has no signal handlers on its loop
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work
