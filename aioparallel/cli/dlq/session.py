"""What is around each command: where it prints, how it asks, and how it ends when something goes wrong."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Coroutine

import typer
from rich.console import Console
from rich.text import Text

from aioparallel.cli.dlq.wording import plain_text
from aioparallel.errors import AioparallelError, ConfigurationError

__all__ = ["FAILED", "WRONG_USE", "confirm", "make_console", "require_consent", "run_command"]

FAILED = 1
WRONG_USE = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells count
WIDTH_WITHOUT_TERMINAL = 160  # columns


def make_console(*, stderr: bool = False) -> Console:
    """Standard output, or standard error: for what is said about the work, so that the other stays fit for a pipe."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDTH_WITHOUT_TERMINAL)


def run_command(command: Coroutine[object, object, bool]) -> None:
    """Run it to its end. Leaves with code 1 when it returns False or fails, 2 for a wrong option, 130 after Ctrl-C."""
    # Kafka clients speak about what passes by itself; a failure has a sentence of its own.
    logging.getLogger().addHandler(logging.NullHandler())
    errors = make_console(stderr=True)
    try:
        passed = asyncio.run(command)
    except BrokenPipeError:
        raise  # `| head` has seen enough; typer ends quietly then
    except (AioparallelError, OSError) as error:
        errors.print(
            Text.assemble(("ERROR ", "bold red"), plain_text(str(error), one_line=True)),
            soft_wrap=True,
            highlight=False,
        )
        raise typer.Exit(WRONG_USE if isinstance(error, ConfigurationError) else FAILED) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        errors.print("Stopped.")
        raise typer.Exit(INTERRUPTED) from None
    if not passed:
        raise typer.Exit(FAILED)


def require_consent(*, yes: bool, dry_run: bool) -> None:
    """Leave with code 2 when there is nobody to ask and nobody has said yes."""
    if not (yes or dry_run or sys.stdin.isatty()):
        make_console(stderr=True).print(
            "ERROR Nobody to ask: standard input is no terminal. --yes does it without asking, --dry-run only tells.",
            soft_wrap=True,
            highlight=False,
        )
        raise typer.Exit(WRONG_USE)


def confirm(question: str) -> bool:
    """Ask on the terminal; everything but yes is no. Raises CancelledError after Ctrl-C.

    Blocks the loop: nothing else goes on meanwhile, and no membership is at stake. asyncio's own handler of SIGINT
    only cancels the task, which would not end the waiting for an answer; so Python's is put in its place.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        raise asyncio.CancelledError from None
    finally:
        signal.signal(signal.SIGINT, before)
