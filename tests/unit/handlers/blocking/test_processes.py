"""in_processes: what is sent to processes, and what happens to calls whose process dies, hangs or is closed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FunctionType

import psutil
import pytest

from aioparallel import (
    ConsumerStateError,
    FailedInProcess,
    ProcessDied,
    Record,
    RetryPolicy,
    in_processes,
    parallel_map,
)
from aioparallel.config.callables import is_async
from aioparallel.handlers.batches import Batch
from aioparallel.handlers.blocking.crossing import Payload, crossing
from aioparallel.handlers.blocking.processes import InProcesses
from aioparallel.handlers.running_out import shortage_of
from aioparallel.records.errors import ConfigurationError, HandlerTimeout
from aioparallel.records.history import history_of
from aioparallel.records.record import Failure, Origin
from tests.unit.handlers.blocking import work

WAIT = 60.0
"""Seconds: against what hangs, not a verdict."""
ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No process is left, not even a zombie, when the loop of a test has ended."""
    before = {one.pid for one in psutil.Process().children()}  # other tests' brokers
    yield
    deadline = time.monotonic() + WAIT
    while left := [one for one in psutil.Process().children() if one.pid not in before and not _is_tracker(one)]:
        gc.collect()
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return "resource_tracker" in " ".join(process.cmdline())
    except psutil.Error:
        return False


async def test_values_come_back() -> None:
    """From other processes, as many as allowed. None is left after the loop."""
    with in_processes(work.double, processes=2) as double:
        given = [o.result() async for o in parallel_map(double, range(50), in_order=True)]
        assert given == [2 * n for n in range(50)]
        assert double.stats().threads == 2
    assert double.stats() == (0, 0, 0)
    assert await double(4) == 8  # anew
    assert is_async(double)
    assert repr(double) == "<in_processes of double, 2 at most>"


async def test_close_while_a_process_starts() -> None:
    """Waiting calls fail, and later calls succeed: they are not affected by the closed process."""
    places = in_processes(work.place, processes=1)
    for _ in range(3):
        first = asyncio.create_task(places(0))
        async with asyncio.timeout(WAIT):
            while not places.stats().waiting:
                await asyncio.sleep(0)
        places.close()
        assert await places(1) > 0
        with pytest.raises(ConsumerStateError, match="place was closed before it was called"):
            await first
        places.close()


async def test_a_decorated_function() -> None:
    """Its name refers to the handler; processes find the function in it."""
    assert await work.decorated(1) == 2


async def test_a_process_is_replaced_after_its_tasks() -> None:
    """After two calls each."""
    places = in_processes(work.place, processes=1, max_tasks=2)
    pids = [await places(n) for n in range(5)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]


@pytest.mark.parametrize(("how", "said"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "ended by SIGKILL")])
async def test_a_process_that_dies_fails_its_call_alone(how: int, said: str) -> None:
    """However it ends, the other calls succeed."""
    items: list[object] = [f"n{n}" for n in range(20)]
    items.insert(5, how)
    dying = in_processes(work.die, processes=2)
    given = [o async for o in parallel_map(dying, items, on_error="emit", in_order=True)]
    errors = [o.error for o in given if o.error is not None]
    assert [o.item for o in given if o.error is not None] == [how]
    assert isinstance(errors[0], ProcessDied)
    assert errors[0].exitcode == how
    assert said in str(errors[0])
    assert "while it ran this call" in str(errors[0])


async def test_a_process_that_dies_idle_fails_nobody() -> None:
    """The next call gets another process."""
    places = in_processes(work.place, processes=1)
    first = await places(0)
    os.kill(first, signal.SIGKILL)
    async with asyncio.timeout(WAIT):
        while psutil.pid_exists(first) and psutil.Process(first).status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.01)
    assert await places(1) != first


async def test_a_deadline_kills_the_process_of_the_call(tmp_path: Path) -> None:
    """Even if it ignores SIGTERM. Then the record is retried, and the process has ended by then."""
    hanging = in_processes(work.hang_once, processes=1)
    given = [
        o
        async for o in parallel_map(hanging, [tmp_path], timeout=1.0, retry=RetryPolicy(max_attempts=9, first_delay=0))
    ]
    assert given[0].value == "second"
    assert given[0].attempts >= 2
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


async def test_a_cancelled_call_ends_no_other() -> None:
    """Its process is killed, the other one continues, and a waiting call is removed at once."""
    naps = in_processes(work.nap, processes=2)
    await asyncio.gather(naps(0.1), naps(0.1))
    long, short = asyncio.create_task(naps(1_000)), asyncio.create_task(naps(1.0))
    queued, last = asyncio.create_task(naps(2_000)), asyncio.create_task(naps(0.0))
    async with asyncio.timeout(WAIT):
        while naps.stats() != (2, 2, 2):
            await asyncio.sleep(0.001)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    assert not short.done()
    assert [await short, await last] == [1.0, 0.0]


async def test_starting_a_process_counts_for_no_deadline() -> None:
    """The deadline is shorter than the start of any process, and the first attempt succeeds."""
    given = [o async for o in parallel_map(in_processes(work.double, processes=1), [1], timeout=0.05)]
    assert (given[0].value, given[0].attempts) == (2, 1)
    hanging = in_processes(work.nap, processes=1)
    late = [o async for o in parallel_map(hanging, [100.0, 0.0], timeout=0.3, on_error="emit", in_order=True)]
    assert [type(o.error) for o in late] == [HandlerTimeout, type(None)]


async def test_exceptions_come_back() -> None:
    """With their own class, and the remote traceback as cause; or described, if they cannot be unpickled."""
    failing = in_processes(work.fail, processes=1)
    with pytest.raises(work.Simple, match="plain") as simple:
        await failing("simple")
    assert isinstance(simple.value.__cause__, FailedInProcess)
    assert "in fail" in simple.value.__cause__.traceback
    with pytest.raises(
        FailedInProcess, match=r"tests.unit.handlers.blocking.work.Awkward in its process: two arg"
    ) as awkward:
        await failing("awkward")
    assert awkward.value.type == "tests.unit.handlers.blocking.work.Awkward"
    assert "raise Awkward(7" in "".join(awkward.value.__notes__)
    with pytest.raises(SystemExit) as ended:
        await failing("exit")
    assert ended.value.code == 5
    with pytest.raises(TypeError, match="a function, which the handler returned, cannot be pickled"):
        await failing("result")
    given = [o.error async for o in parallel_map(failing, ["later"], retry=RetryPolicy(max_wait=0.05), on_error="emit")]
    assert str(given[0]) == "not yet"


@pytest.mark.parametrize("kind", ["short", "short, awkward"])
async def test_what_a_process_has_run_out_of(kind: str) -> None:
    """It is reported with the error, although its cause is not sent back, so the record waits."""
    with pytest.raises((work.Simple, FailedInProcess)) as found:
        await in_processes(work.fail, processes=1)(kind)
    assert shortage_of(found.value) == "Too many open files"


def test_failures_of_a_batch_come_back() -> None:
    """Whatever their texts are, with the resource that the process has run out of."""
    payload = crossing(Batch.of([Record("t", 0, offset) for offset in range(2)]))
    assert isinstance(payload, Payload)
    *_, failures = pickle.loads(pickle.dumps(payload.__run__(work.fail_each)))
    assert isinstance(failures[0], FailedInProcess)
    assert failures[0].type == "Unspeakable"
    assert shortage_of(failures[1]) == "Too many open files"


async def test_an_item_that_cannot_be_pickled_fails_alone() -> None:
    """Before it is sent."""
    handler: InProcesses[object, int] = in_processes(work.place, processes=1)
    given = [o async for o in parallel_map(handler, [1, lambda: 0, 2], on_error="emit", in_order=True)]
    assert [type(o.error) for o in given] == [type(None), TypeError, type(None)]
    assert "a function cannot be sent to a process" in str(given[1].error)


async def test_records_cross() -> None:
    """A handler gets the public attributes of a record, and nothing else."""
    record = Record("orders", 3, 17, b"k", {"n": 1}, (("h", b"1"),), 99)
    record._raw, record._source = (b"k", b"raw"), (lambda: 0)  # type: ignore[assignment]
    record._parks = 2
    history = history_of(record)
    history.first_failure = history.last_failure = Failure(1.0, "ValueError", "no")
    history.origin = Origin("first", 0, 1, 2)
    copy = pickle.loads(pickle.dumps(record))
    for name in ("place", "key", "value", "headers", "timestamp", "attempt", "raw_key", "raw_value"):
        assert getattr(copy, name) == getattr(record, name)
    assert (copy.first_failure, copy.last_failure, copy.origin) == (
        history.first_failure,
        history.last_failure,
        history.origin,
    )
    assert not hasattr(copy, "_source")
    plain = pickle.loads(pickle.dumps(Record("t", 0, 1)))
    assert plain._history is None
    assert plain.origin == ("t", 0, 1, 0)
    assert await in_processes(work.look, processes=1)(record) == (
        "orders-3 offset 17",
        b"k",
        {"n": 1},
        (("h", b"1"),),
        99,
        3,
        b"raw",
    )


async def test_items_that_cross_as_something_else() -> None:
    """Through ``__cross__``, ``__run__`` in the process, and ``__returned__``."""
    double: InProcesses[work.Sum, str] = in_processes(work.double, processes=1)  # type: ignore[arg-type]
    assert await double(work.Sum(1, 2, 3)) == "12 of 3"


def test_one_object_serves_loops_one_after_the_other() -> None:
    """Its processes end with each loop."""
    places = in_processes(work.place, processes=1)

    async def call() -> int:
        return await places(0)

    first = asyncio.run(call())
    assert places.stats().threads == 0
    assert not psutil.pid_exists(first)
    assert asyncio.run(call()) != first


async def test_processes_end_with_the_object() -> None:
    """Even before the loop ends."""
    places = in_processes(work.place, processes=1)
    pid = await places(0)
    del places
    async with asyncio.timeout(WAIT):
        while psutil.pid_exists(pid):
            gc.collect()
            await asyncio.sleep(0.01)


async def test_a_name_that_stands_for_another_function() -> None:
    """Processes would run another function, so the first call is refused."""
    with pytest.raises(ValueError, match=r"is not what tests\.unit\.handlers\.blocking\.work\.original refers to"):
        await in_processes(work.hidden)(1)


def _local(_: object) -> None: ...


class Bound:
    def __init__(self) -> None:
        self.lock = lambda: 0

    def method(self, _: object) -> None: ...


async def coroutine(_: object) -> None: ...


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: in_processes(lambda n: n), "is a lambda, or defined within another function"),
        (lambda: in_processes(Bound().method), "cannot be pickled"),
        (lambda: in_processes(partial(max, lambda: 0)), "cannot be pickled"),
        (lambda: in_processes(coroutine), "must be a plain function"),
        (lambda: in_processes(_local, processes=0), "in_processes processes=0: must be a whole number of at least 1"),
        (lambda: in_processes(_local, max_tasks=-1), "in_processes max_tasks=-1: must be a whole number of at least 0"),
        (lambda: in_processes(3), "must be a plain function"),  # type: ignore[call-overload]
    ],
)
def test_what_is_refused(make: object, text: str) -> None:
    """At construction, with what was found and what is allowed."""
    assert callable(make)
    with pytest.raises(ValueError, match="in_processes") as raised:
        make()
    assert text in str(raised.value)


def _program(folder: Path, text: str) -> list[str]:
    (folder / "program.py").write_text(text)
    return [sys.executable, str(folder / "program.py")]


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


BODY = """
import asyncio, os, sys, time
from aioparallel import in_processes, parallel_map

def say(*words):
    # One write for a line: several processes share the pipe.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def work(seconds):
    say("pid", os.getpid())
    time.sleep(seconds)
    return seconds

async def main(*items):
    async for outcome in parallel_map(in_processes(work, processes=2), items):
        say("value", outcome.value)
"""


def test_a_program_with_a_guard(tmp_path: Path) -> None:
    """Its handler is in the main module."""
    command = _program(tmp_path, BODY + "if __name__ == '__main__':\n    asyncio.run(main(0, 0))\n    print('over')\n")
    run = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=WAIT, check=True)
    assert run.stdout.count("value 0") == 2
    assert run.stdout.endswith("over\n")
    assert run.stderr == ""


def test_a_program_without_a_guard(tmp_path: Path) -> None:
    """It ends, and both it and its process say why."""
    command = _program(tmp_path, BODY + "asyncio.run(main(0, 0))\n")
    run = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=WAIT, check=False)
    assert run.returncode == 1
    assert "value" not in run.stdout
    assert "ConsumerStateError: this process was started by in_processes" in run.stderr
    assert "ended with exit code 1 before it could take a call; its own output says why" in run.stderr
    assert run.stderr.count('below `if __name__ == "__main__":`') >= 2


def test_an_interactive_program_is_refused() -> None:
    """With advice."""
    code = "from aioparallel import in_processes\ndef f(x): ...\nin_processes(f)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT, check=False)
    assert "belongs to an interactive program, which no process can import: put it into a file" in run.stderr


def test_a_function_that_another_program_has_sent_is_refused() -> None:
    """As a Spark worker gets the function of a script. It is not an interactive program, and the message says where to
    put the function."""
    sent = FunctionType((lambda x: x).__code__, {}, "work")
    sent.__module__, sent.__qualname__ = "__main__", "work"
    with pytest.raises(ConfigurationError, match=r"belongs to the program that sent it here.* put it into a module"):
        in_processes(sent)


def test_a_program_from_standard_input_is_refused() -> None:
    """Each process would try to import it first, even if the function is in another module."""
    code = "import json\nfrom aioparallel import in_processes\nin_processes(json.dumps)"
    run = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, timeout=WAIT, check=False)
    assert "(it comes from standard input, say): put it into a file" in run.stderr
    code = code.replace("in_processes(json.dumps)", "print(in_processes(json.dumps))")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT, check=False)
    assert "dumps" in run.stdout


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_children_end_with_their_parent(tmp_path: Path, how: signal.Signals) -> None:
    """If the parent is killed, or all are interrupted by the terminal. They print nothing then."""
    command = _program(tmp_path, BODY + "if __name__ == '__main__':\n    asyncio.run(main(1_000, 1_000))\n")
    with subprocess.Popen(
        command,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        pids = [int(program.stdout.readline().split()[1]) for _ in range(2)]
        if how == signal.SIGINT:
            os.killpg(program.pid, how)
        else:
            program.send_signal(how)
        assert program.wait(WAIT) == -how
        deadline = time.monotonic() + WAIT
        while any(_lives(pid) for pid in pids):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        said = program.stderr.read()
        assert "Process aioparallel" not in said
        assert said.count("Traceback") <= 1 + ("During handling" in said) + said.count("The above exception")


def _lives(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_the_package_does_not_load_it() -> None:
    """Programs without in_processes do not import multiprocessing."""
    code = "import sys, aioparallel; assert 'multiprocessing.context' not in sys.modules; aioparallel.in_processes"
    subprocess.run([sys.executable, "-c", code], timeout=WAIT, check=True)


async def test_closed_while_an_item_is_pickled() -> None:
    """The call fails with a clear message; the next one gets a process."""
    work.SlowToPickle.begun = False
    with in_processes(work.double) as double:
        assert await double(1) == 2
        call = asyncio.create_task(double(work.SlowToPickle()))  # type: ignore[arg-type]
        async with asyncio.timeout(WAIT):
            while not work.SlowToPickle.begun:
                await asyncio.sleep(0.01)
        double.close()
        with pytest.raises(ProcessDied, match="was closed before it took the call"):
            await call
        assert await double(2) == 4
