"""A child is started, heard, paused and killed, and never outlives the process that started it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from aioparallel.testing.processes import Child, ChildFailed

ECHO = """
import sys
from aioparallel.testing.processes import tell
print("on stderr", file=sys.stderr, flush=True)
tell("ready")
for line in sys.stdin:
    tell(line.upper().strip())
"""
DEAF = "import time, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
FAMILY = """
import subprocess, sys, time
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(below.pid, flush=True)
if "ends" not in sys.argv:
    time.sleep(600)
"""
CALLER = f"""
import asyncio, json, sys
from pathlib import Path
from aioparallel.testing.processes import Child

async def main():
    async with Child("deaf one", [sys.executable, "-c", {DEAF!r}], log=Path(sys.argv[1])) as child:
        await child.line()
        print(json.dumps([child.pid, child._guard.pid]), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""
UNTIL_PARENT_ENDS = """
import asyncio, sys
from aioparallel.testing.processes import run_until_parent_ends, tell

async def work():
    tell("up")
    try:
        await asyncio.sleep(600)
    finally:
        if "hangs" in sys.argv:
            await asyncio.sleep(600)
        print("cleaned up", file=sys.stderr)

run_until_parent_ends(work())
"""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="children are guarded on Linux and macOS")


def gone(pid: int) -> bool:
    """Whether this process has ended (perhaps not reaped yet)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def until_gone(*pids: int, timeout: float = 15.0) -> None:
    """Raises TimeoutError when one of them goes on."""
    async with asyncio.timeout(timeout):
        while not all(map(gone, pids)):
            await asyncio.sleep(0.02)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "child.log"


def guard_of(child: Child) -> subprocess.Popen[bytes]:
    assert child._guard is not None
    return child._guard


def said(log: Path) -> str:
    """What the child wrote to standard error."""
    return log.read_text()


def python(program: str, log: Path, *arguments: str, name: str = "echo") -> Child:
    """A child that runs this program."""
    return Child(name, [sys.executable, "-c", program, *arguments], log=log)


async def test_it_is_told_and_heard(log: Path) -> None:
    """Lines go in and come out, standard error goes to the log, a stop closes its input and it ends well."""
    async with python(ECHO, log) as child:
        assert await child.line() == "ready"
        await child.say("hello")
        assert await child.line() == "HELLO"
        assert (child.running, child.exit_code) == (True, None)
        assert psutil.pid_exists(child.pid)
    assert (child.running, child.exit_code) == (False, 0)
    assert said(log) == "on stderr\n"
    await child.stop()


async def test_variables_and_folder_are_its_own(log: Path, tmp_path: Path) -> None:
    """``environment`` comes beside ours, ``directory`` is where it works."""
    program = "import os; print(os.environ['MINE'], os.environ['PATH'] != '', os.getcwd())"
    command = [sys.executable, "-c", program]
    async with Child("looker", command, log=log, environment={"MINE": "yes"}, directory=tmp_path) as child:
        assert [line async for line in child.lines()] == [f"yes True {tmp_path}"]
        await child.ended(10)


async def test_a_program_that_is_not_there_is_told(log: Path) -> None:
    """Entering raises, with its name; nothing is left."""
    with pytest.raises(ChildFailed, match=r"the nobody could not be started: .*no-such-program"):
        await Child("nobody", ["no-such-program"], log=log).start()


async def test_an_early_end_is_told_with_the_last_words(log: Path) -> None:
    """Whoever waits for a line hears the exit code, and what the child said last; so does whoever waits for its end."""
    async with python("raise SystemExit('out of luck')", log) as child:
        with pytest.raises(ChildFailed, match=r"the echo ended with exit code 1: out of luck \(see .*child.log\)"):
            await child.line()
        with pytest.raises(ChildFailed, match=r"failed \(exit code 1\): out of luck"):
            await child.ended()
        with pytest.raises(ChildFailed, match="ended with exit code 1"):
            await child.say("anybody?")


async def test_silence_is_told(log: Path) -> None:
    """A line that does not come in time, an end that does not."""
    async with python(DEAF, log) as child:
        await child.line()
        with pytest.raises(ChildFailed, match=r"said nothing for 0.05 s"):
            await child.line(0.05)
        with pytest.raises(ChildFailed, match=r"did not end within 0.05 s"):
            await child.ended(0.05)
        await child.kill()
    assert child.exit_code == -signal.SIGKILL


async def test_a_long_line_comes_whole(log: Path) -> None:
    """A million characters."""
    async with python("print('x' * 1_000_000)", log) as child:
        assert await child.line() == "x" * 1_000_000


async def test_one_that_does_not_listen_is_killed(log: Path) -> None:
    """After the time-out of stop; SIGTERM does nothing to this one."""
    async with python(DEAF, log) as child:
        await child.line()
        child.terminate()
        await child.stop(0.1)
    assert gone(child.pid)
    assert child.exit_code == -signal.SIGKILL


async def test_one_that_is_paused_says_nothing_and_can_be_stopped(log: Path) -> None:
    """SIGSTOP and SIGCONT reach it; a paused one is killed by stop."""
    async with python(ECHO, log) as child:
        await child.line()
        child.pause()
        async with asyncio.timeout(10):
            while psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
                await asyncio.sleep(0.01)
        await child.say("later")
        child.resume()
        assert await child.line() == "LATER"
        child.pause()
        await child.stop(0.1)
    assert gone(child.pid)


@pytest.mark.parametrize("how", ["ends", "stopped"])
async def test_its_family_goes_with_it(log: Path, how: str) -> None:
    """What the child has started ends with it, whether it ends by itself or is stopped."""
    async with python(FAMILY, log, how) as child:
        below = int(await child.line())
        if how == "ends":
            await child.ended(15)
        else:
            await child.stop(0.0)
    await until_gone(below, child.pid)


@pytest.fixture
def caller(log: Path) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """A process with a child that does not listen: itself, the child, the guard."""
    command = [sys.executable, "-c", CALLER, str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        child, guard = json.loads(process.stdout.readline())
        yield process, child, guard
        process.kill()
        for pid in (child, guard):
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_it_ends_with_its_parent(caller: tuple[subprocess.Popen[str], int, int], number: signal.Signals) -> None:
    """A parent that is killed, terminated or interrupted leaves neither child nor guard."""
    process, child, guard = caller
    assert not gone(child)
    os.killpg(process.pid, number)
    await until_gone(child, guard)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a process with its parent")
async def test_a_killed_guard_takes_it_along(log: Path) -> None:
    """The child is gone, and whoever waits for it hears so."""
    async with python(DEAF, log) as child:
        await child.line()
        guard_of(child).kill()
        with pytest.raises(ChildFailed, match="exit code -9"):
            await child.ended(15)
        await until_gone(child.pid)


async def test_a_cancelled_start_leaves_nothing(log: Path) -> None:
    """At whatever moment."""
    for delay in (0.0, 0.005, 0.01, 0.02, 0.04):
        child = python(DEAF, log)
        task = asyncio.create_task(child.start())
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.wait([task])
        await child.stop(0.0)
        if child._guard is not None:
            await until_gone(child._guard.pid)


async def test_work_in_a_child_ends_with_its_input(log: Path) -> None:
    """It is cancelled and may clean up."""
    async with python(UNTIL_PARENT_ENDS, log) as child:
        assert await child.line() == "up"
    assert child.exit_code == 0
    assert said(log) == "cleaned up\n"


async def test_work_that_does_not_end_is_left(log: Path) -> None:
    """After 2 s the child ends all the same, before anybody has to kill it."""
    async with python(UNTIL_PARENT_ENDS, log, "hangs") as child:
        assert await child.line() == "up"
        began = time.monotonic()
        await child.stop(30)
    assert child.exit_code == 1
    assert time.monotonic() - began < 30


async def test_thousands_of_signals_do_not_stop_it_from_being_killed(log: Path) -> None:
    """Signals have no answers that nobody reads."""
    async with python(DEAF, log) as child, asyncio.timeout(60):
        await child.line()
        for _ in range(5_000):
            child.resume()
            await asyncio.sleep(0)
        await child.kill()
    assert child.exit_code == -signal.SIGKILL


@pytest.mark.parametrize("count", [10**9, 10**7])
async def test_output_that_nobody_reads_keeps_nobody(log: Path, count: int) -> None:
    """The child blocks, or its output waits to be read: it is stopped all the same, in time."""
    async with asyncio.timeout(30), python(f"print('up', flush=True); print('x' * {count})", log) as child:
        assert await child.line() == "up"
        await child.stop(0.1)
    assert not child.running


async def test_what_it_leaves_behind_keeps_nobody(log: Path) -> None:
    """A process in a session of its own holds the child's output; the child's end is seen all the same."""
    program = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], "
        "start_new_session=True); print(p.pid, flush=True)"
    )
    async with asyncio.timeout(30), python(program, log) as child:
        left = int(await child.line())
        try:
            await child.ended(20)
        finally:
            os.kill(left, signal.SIGKILL)


async def test_it_hears_ctrl_c(log: Path) -> None:
    """The guard ignores it, its child does not."""
    program = (
        "import time\ntry:\n    print('up', flush=True); time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('interrupted', flush=True)"
    )
    async with python(program, log) as child:
        await child.line()
        child.signal(signal.SIGINT)
        assert await child.line() == "interrupted"
        await child.ended(15)


async def test_one_that_takes_nothing_is_told(log: Path) -> None:
    """Paused, or with its input closed, or after its end: each a ChildFailed, in time."""
    async with asyncio.timeout(60), python(DEAF, log) as child:
        await child.line()
        with pytest.raises(ChildFailed, match=r"read nothing for 0.2 s"):
            await child.say("x" * 10_000_000, timeout=0.2)
        await child.kill()  # or leaving would wait until it does not listen to SIGTERM either
    with pytest.raises(ChildFailed, match="exit code"):
        await child.say("anybody?")
    closed = "import os, time; os.close(0); print('up', flush=True); time.sleep(600)"
    async with asyncio.timeout(60), python(closed, log) as child:
        await child.line()
        with pytest.raises(ChildFailed, match="has closed its standard input"):
            await child.say("anybody?")
        await child.kill()


async def test_a_line_without_an_end_is_told_once(log: Path) -> None:
    """The child is killed, so that no torn rest is taken for a line."""
    async with asyncio.timeout(60), python("print('x' * 20_000_000, flush=True); input()", log) as child:
        with pytest.raises(ChildFailed, match="too long, and was killed"):
            await child.line()
        assert child.exit_code == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a process with its parent")
async def test_a_killed_guard_takes_the_family_along(log: Path) -> None:
    """Also what the child has started."""
    async with python(FAMILY, log) as child:
        below = int(await child.line())
        guard_of(child).kill()
        await until_gone(below, child.pid)


async def test_a_child_starts_once(log: Path) -> None:
    """A second start is refused."""
    async with python(ECHO, log) as child:
        with pytest.raises(ChildFailed, match="started before"):
            await child.start()


async def test_children_leave_no_descriptors(log: Path) -> None:
    """Twenty of them."""
    process = psutil.Process()
    before = process.num_fds()
    for _ in range(20):
        async with python("pass", log) as child:
            await child.ended(15)
    await asyncio.sleep(0)
    assert process.num_fds() <= before + 2
