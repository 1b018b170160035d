"""The commands and how each of them ends.

A command is a function or coroutine whose options are dataclasses with a docstring after each attribute (see
``dlq/commands.py``). Options that the library describes have none (see ``meanings.py``). Its module imports at the top
only what the options need. Kafka clients, numpy and others are imported by the function, so that ``--help`` is fast. A
command that returns False has failed; one that returns a number ends with that code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console

from aioparallel import __version__
from aioparallel.cli import INTERRUPTED
from aioparallel.cli.bench.command import bench
from aioparallel.cli.broker import broker
from aioparallel.cli.console import as_typed, say, say_error
from aioparallel.cli.consume.command import consume
from aioparallel.cli.dlq.commands import dlq
from aioparallel.cli.groups.commands import groups
from aioparallel.cli.kmq.commands import kmq
from aioparallel.cli.offsets.commands import offsets
from aioparallel.cli.produce.command import produce
from aioparallel.cli.share.commands import share
from aioparallel.cli.store.commands import store
from aioparallel.cli.topics.commands import topics
from aioparallel.event_loop.left_behind import still_running
from aioparallel.records.errors import AioparallelError, ConfigurationError, HandlerNotStopped

__all__ = ["app", "main", "run"]

FAILED: Final = 1
WRONG_USE: Final = 2
NOT_STOPPED: Final = 3


def shown_default(value: object) -> str | None:
    """The default that help shows; none if it means "not given"."""
    return None if value in (None, False, ()) else str(value)


app = App(
    name="aioparallel",
    help="The asyncio parallel consumer for Kafka.",
    version=f"aioparallel {__version__}",
    default_parameter=Parameter(negative=(), show_default=shown_default),
    help_format="markdown",
    suppress_keyboard_interrupt=False,
)
for command in (broker, topics, produce, consume, groups, offsets, dlq, kmq, share, store, bench):
    app.command(command)
app.register_install_completion_command()


def main() -> None:
    """Run the command line and exit with its code. SIGTERM ends it like Ctrl-C.

    Tasks that ignore their cancellation would keep the process alive: it exits at once then, with a code of its own.
    """
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    code = run(sys.argv[1:])
    if still_running():
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # the reader is gone
                stream.flush()
        os._exit(NOT_STOPPED)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command. Returns its exit code: 0 done, 1 failed, 2 wrong use, 3 a handler still runs, 4 a limit of the
    command is exceeded, 130 interrupted.

    Failures that the user can fix are reported as a sentence; a traceback means a defect.
    """
    # Kafka clients log conditions that pass by themselves; failures are reported below.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        passed = app(arguments, console=Console(), exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has ended, as in `| head`. Python would report it again at its last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except CycloptsError as error:
        # A value was refused by its converter, which does not know the name of the option.
        if isinstance(cause := error.__cause__, ConfigurationError) and error.argument is not None:
            say_error(as_typed(cause, {cause.option: error.argument.name}))
        else:
            say_error(str(error))
        return WRONG_USE
    except AioparallelError as error:
        say_error(as_typed(error, flags(arguments)))
        codes = ((ConfigurationError, WRONG_USE), (HandlerNotStopped, NOT_STOPPED))
        return next((code for kind, code in codes if isinstance(error, kind)), FAILED)
    except OSError as error:
        say_error(str(error))
        return FAILED
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("Stopped.")
        return INTERRUPTED
    return code_of(passed)


def code_of(passed: object) -> int:
    """The exit code for what a command has returned."""
    if isinstance(passed, int) and not isinstance(passed, bool):
        return passed
    return FAILED if passed is False else 0


def flags(arguments: Sequence[str]) -> dict[str, str]:
    """Flags of the command that was given, by their names in Python."""
    _, commands, _ = app.parse_commands(list(arguments))
    return {one.field_info.name: one.name for one in commands[-1].assemble_argument_collection(parse_docstring=False)}
