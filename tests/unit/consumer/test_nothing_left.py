"""However a run ends: no task, timer, connection or worker is left, and nothing that nobody caught."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import psutil
import pytest

from aioparallel.consumer import ParallelConsumer
from aioparallel.records.errors import BrokerUnreachable
from tests.simulation.loop import RecordingLoop
from tests.support.garbage import set_aside
from tests.support.memory.stages import GROUP, KINDS, SOON, Isolation, Stage, live
from tests.support.memory.ways_to_end import ENDS, OPENINGS, end


@pytest.fixture(autouse=True, scope="module")
def _what_there_was_before() -> None:
    """Is no part of the collections here: they would take a hundred times as long."""
    set_aside()


def nothing_is_left(kind: str, scenario: Callable[[], Stage], play: Callable[[Stage], object]) -> None:
    """Play the scenario on a loop of this kind and look."""
    KINDS[kind]().close()  # what a kind of loop opens once and for all
    gc.collect()  # of tests that have failed
    before = threads_and_files()
    uncaught: list[str] = []
    with asyncio.Runner(loop_factory=KINDS[kind]) as runner:
        loop = runner.get_loop()
        loop.set_exception_handler(lambda _, context: uncaught.append(str(context)))

        async def main() -> None:
            stage = scenario()
            await play(stage)  # type: ignore[misc]
            for timer in stage.timers:
                timer.cancel()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            if stage.moment == "ignoring":  # it is left behind, and named; when it ends, all of it is gone
                assert len(left) <= 2 * stage.begun, left
                async with asyncio.timeout(SOON):
                    while stage.handled < stage.begun:
                        await asyncio.sleep(0.01)
                await asyncio.sleep(0.03)
                left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left
            if isinstance(loop, RecordingLoop):
                assert not loop.timers()
            assert not stage.broker.group(GROUP).members
            assert not stage.broker.connections(1)
            assert not stage.open_resources

        runner.run(main())
    gc.collect()  # what nobody has caught is told when it is forgotten
    assert not uncaught
    assert threads_and_files() == before


def threads_and_files() -> tuple[int, int]:
    """How many there are."""
    return threading.active_count(), psutil.Process().num_fds()


REAL_MOMENTS = ("suspended", "hanging", "producing")
MOMENTS = ("idle", "suspended", "hanging", "ignoring", "producing", "deferred", "parked")


CASES = [
    pytest.param(kind, ending, moment)
    for kind in KINDS
    for ending in ENDS
    for moment in (MOMENTS if kind.startswith("virtual") else REAL_MOMENTS)
]


@pytest.mark.parametrize(("kind", "ending", "moment"), CASES)
def test_nothing_is_left_when_a_run_ends(kind: str, ending: str, moment: str) -> None:
    """Whatever ends it, and wherever its handlers are then."""
    real_time = not kind.startswith("virtual")
    isolations: list[Isolation] = ["context"] if real_time else ["context", "task"]
    for isolation in isolations:
        nothing_is_left(kind, partial(Stage, moment, isolation, real_time=real_time), ENDS[ending])


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_when_opening_fails(kind: str, opening: str) -> None:
    """What was opened before is closed."""
    nothing_is_left(kind, partial(Stage, "idle", "context", real_time=True), OPENINGS[opening])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("virtual")])
def test_nothing_is_left_of_connections_to_kafka(kind: str) -> None:
    """No socket of the real client and producer either, where nobody listens."""

    async def connect(stage: Stage) -> None:
        consumer = ParallelConsumer("t", bootstrap_servers="127.0.0.1:1", group_id=GROUP, connect_timeout=0.3)
        assert isinstance(await live(consumer, stage), BrokerUnreachable)

    nothing_is_left(kind, partial(Stage, "idle", "context", real_time=True), connect)


SIGNALLED = """
import asyncio, sys
from aioparallel.testing.memory import Request
from tests.support.memory.stages import Stage

class Runner(asyncio.Runner):
    def close(self):
        if self.get_loop().is_closed():
            return
        left = [task.get_name() for task in asyncio.all_tasks(self.get_loop())]
        print("left", left, stage.open_resources, list(stage.broker.group("g").members), flush=True)
        super().close()

asyncio.Runner = Runner
stage = Stage(sys.argv[1], "context", real_time=True)
began = 0

async def handle(record):
    global began
    began += 1
    if began == 4:
        print("begun", flush=True)
    return await stage.handle(record)

stage.consumer(drain_timeout=float(sys.argv[2])).run_sync(handle)
print("ended", flush=True)
"""


@pytest.mark.parametrize(("moment", "signals"), [*((moment, 1) for moment in REAL_MOMENTS), ("hanging", 2)])
def test_nothing_is_left_after_signals(moment: str, signals: int) -> None:
    """run_sync() in a process of its own: the first SIGINT drains, the second does not wait."""
    drain = 0.1 if signals == 1 else 30.0
    command = [sys.executable, "-X", "dev", "-c", SIGNALLED, moment, str(drain)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n", child.communicate(timeout=SOON)
        for _ in range(signals):
            child.send_signal(signal.SIGINT)
            time.sleep(0.1)  # two at once may be heard as one
        out, error = child.communicate(timeout=SOON)
    assert out.splitlines() == ["left [] 0 []", "ended"], error
    assert child.returncode == 0
    assert "Error" not in error
    assert "Warning" not in error


@pytest.mark.parametrize("moment", ["idle", "suspended", "producing"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_at_the_end_offsets(kind: str, moment: str) -> None:
    """Whether the last handlers never suspend, do so, or wait for their outputs."""
    nothing_is_left(kind, lambda: Stage(moment, "context", real_time=True), end)
