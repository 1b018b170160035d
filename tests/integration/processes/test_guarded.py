"""A guarded process never outlives the one that started it, however that one ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from aioparallel.records.errors import BrokerStartError
from aioparallel.testing.processes.guarded import GuardedProcess

CALLER = """
import json, os, sys, time
from aioparallel.testing.processes.guarded import GuardedProcess

guarded = GuardedProcess("test")
(guarded.directory / "data").write_text("x")
guarded.run([sys.executable, "-c", "import time; time.sleep(600)"], guarded.directory / "log")
if "fork" in sys.argv and os.fork() == 0:
    time.sleep(60)
    os._exit(0)
print(json.dumps({"pid": guarded.pid, "guard": guarded._guard.pid, "directory": str(guarded.directory)}), flush=True)
sys.stdin.readline()
if "fail" in sys.argv:
    raise RuntimeError("on purpose")
"""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="broker processes run on Linux and macOS")


class Caller(NamedTuple):
    """A process with a guarded process below it."""

    process: subprocess.Popen[str]
    guarded: psutil.Process
    guard: psutil.Process
    directory: Path

    def nothing_left(self) -> bool:
        return gone(self.guarded) and gone(self.guard) and not self.directory.exists()


def gone(process: psutil.Process) -> bool:
    """Whether it has ended (perhaps not reaped yet)."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def eventually(condition: Callable[[], bool], timeout: float = 15.0) -> bool:
    """Whether the condition became true in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def call() -> Iterator[Callable[..., Caller]]:
    """Starts callers, each the leader of a process group; ends what they left."""
    callers: list[Caller] = []

    def start(*arguments: str) -> Caller:
        process = subprocess.Popen(
            [sys.executable, "-c", CALLER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        caller = Caller(process, psutil.Process(said["pid"]), psutil.Process(said["guard"]), Path(said["directory"]))
        callers.append(caller)
        return caller

    yield start
    for caller in callers:
        caller.process.kill()
        caller.process.communicate()
        for left in (caller.guarded, caller.guard):
            if not gone(left):
                left.kill()
        shutil.rmtree(caller.directory, ignore_errors=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_caller_leaves_nothing(call: Callable[..., Caller], number: signal.Signals) -> None:
    """When a signal ends the caller, SIGKILL included, the process, its guard and its directory go."""
    caller = call()
    assert not caller.nothing_left()
    caller.process.send_signal(number)
    assert eventually(caller.nothing_left)


@pytest.mark.parametrize("ending", ["return", "fail"])
def test_an_ended_caller_leaves_nothing(call: Callable[..., Caller], ending: str) -> None:
    """A caller that ends without closing, with or without an exception, leaves nothing."""
    caller = call(ending)
    caller.process.communicate("\n", timeout=15)
    assert eventually(caller.nothing_left)


def test_a_killed_process_group_leaves_nothing(call: Callable[..., Caller]) -> None:
    """SIGKILL to the caller's whole process group does not reach the guard, which cleans up."""
    caller = call()
    os.killpg(caller.process.pid, signal.SIGKILL)
    assert eventually(caller.nothing_left)


def test_a_forked_child_does_not_keep_it_alive(call: Callable[..., Caller]) -> None:
    """A forked child of the caller holds the pipe open, and the guard still sees that the caller has ended."""
    caller = call("fork")
    (forked,) = [child for child in psutil.Process(caller.process.pid).children() if child.pid != caller.guard.pid]
    try:
        caller.process.kill()
        assert eventually(caller.nothing_left)
        assert not gone(forked)
    finally:
        forked.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a process with its parent")
def test_a_killed_guard_takes_the_process_along(call: Callable[..., Caller]) -> None:
    """When somebody kills the guard itself, Linux kills the process below it."""
    caller = call()
    caller.guard.kill()
    assert eventually(lambda: gone(caller.guarded))


@pytest.fixture
def guarded() -> Iterator[GuardedProcess]:
    """One in this process."""
    process = GuardedProcess("test")
    yield process
    process.close()


def test_it_runs_one_command_after_the_other(guarded: GuardedProcess) -> None:
    """Commands run in the directory, their output is appended to the log, their exit code comes back."""
    log = guarded.directory / "log"
    for word, code in (("one", 0), ("two", 3)):
        guarded.run([sys.executable, "-c", f"print({word!r}); raise SystemExit({code})"], log)
        assert guarded.wait(15) == code
    assert log.read_text().split() == ["one", "two"]


def test_signals_reach_the_command(guarded: GuardedProcess) -> None:
    """A signal ends the command, the exit code says which; a signal after the end does nothing."""
    guarded.run([sys.executable, "-c", "import time; time.sleep(600)"], guarded.directory / "log")
    assert guarded.exit_code() is None
    guarded.signal(signal.SIGKILL)
    assert guarded.wait(15) == -signal.SIGKILL
    guarded.signal(signal.SIGKILL)


def test_a_command_that_cannot_start_is_an_error(guarded: GuardedProcess) -> None:
    """A missing program is named, and the guard goes on."""
    with pytest.raises(BrokerStartError, match="no-such-program"):
        guarded.run(["no-such-program"], guarded.directory / "log")
    guarded.run([sys.executable, "-c", ""], guarded.directory / "log")
    assert guarded.wait(15) == 0


def test_a_dead_guard_is_an_error(guarded: GuardedProcess) -> None:
    """When the guard is gone, a call says so instead of waiting, and close still removes the directory."""
    guarded.run([sys.executable, "-c", ""], guarded.directory / "log")
    psutil.Process(guarded._guard.pid).kill()
    guarded._guard.wait(15)
    with pytest.raises(BrokerStartError, match=r"guard .* is gone"):
        guarded.exit_code()
    guarded.close()
    assert not guarded.directory.exists()


def test_the_family_of_the_command_goes_too(guarded: GuardedProcess) -> None:
    """What the command has started ends with it: a JVM below a script below a JVM would stay."""
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    guarded.run([sys.executable, "-c", program], guarded.directory / "log")
    assert guarded.pid is not None
    command = psutil.Process(guarded.pid)
    assert eventually(lambda: bool(command.children()))
    (below,) = command.children()
    guarded.close()
    assert eventually(lambda: gone(below))
    assert gone(command)


def test_close_removes_all_and_may_be_repeated(guarded: GuardedProcess) -> None:
    """After close nothing runs, the directory is gone, and a further command is refused."""
    guarded.run([sys.executable, "-c", "import time; time.sleep(600)"], guarded.directory / "log")
    assert guarded.pid is not None
    running = psutil.Process(guarded.pid)
    guarded.close()
    guarded.close()
    assert gone(running)
    assert not guarded.directory.exists()
    with pytest.raises(BrokerStartError, match="was closed"):
        guarded.exit_code()
