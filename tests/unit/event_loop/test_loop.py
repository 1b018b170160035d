"""The collector as a consumer's process has it. In a process of its own: it is set up once and for all."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CYCLES = """
import asyncio, gc, json, sys, weakref
from collections import deque
from aioparallel.event_loop import quick_collections

class Node(list):
    __slots__ = ("__weakref__",)  # it and its items: two objects for the allocator, in any Python

def cycle():
    first, second = Node(), Node()
    first.append(second), second.append(first)
    return first

async def main():
    most = 0
    kept = deque(maxlen=30_000)  # each survives young collections, and dies when it is old
    watched = []
    for number in range(1_000_000):
        node = cycle()
        kept.append(node)
        if number % 1_000 == 0:
            watched.append(weakref.ref(node))
            await asyncio.sleep(0)
            most = max(most, sys.getallocatedblocks())
    alive = sum(reference() is not None for reference in watched)
    return {"most": most, "alive": alive, "watched": len(watched)}

quick_collections()
quick_collections()
began = sys.getallocatedblocks()
said = asyncio.run(main())
print(json.dumps(said | {"began": began, "callbacks": len(gc.callbacks)}))
"""


def test_cycles_that_die_old_are_found() -> None:
    """Objects in cycles that have survived young collections are frozen, and collected all the same before they are
    many: of a million cycles (four million objects) fewer than four in ten are alive at the end, and at no time are
    there many more objects than twice what is kept and a million."""
    ran = subprocess.run([sys.executable, "-c", CYCLES], capture_output=True, text=True, timeout=120, check=True)
    said = json.loads(ran.stdout)
    print(said)
    assert said["callbacks"] == 1
    kept = said["began"] + 4 * 30_000
    assert said["most"] < 2 * kept + 1_300_000
    assert said["alive"] < 0.4 * said["watched"]


HEAVY = """
def _resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
import asyncio, gc, json
from aioparallel.event_loop import quick_collections

class Node:
    pass

async def first():
    gc.collect(0)

async def handle(number):
    first, second = Node(), Node()
    first.other, second.other = second, first
    first.data = bytes(500_000)
    await asyncio.sleep(0.002)

async def main():
    most = 0
    for number in range(400):
        await asyncio.gather(*(handle(one) for one in range(50)))  # 25 MB each time, 10 GB in all
        most = max(most, _resident())
    return most

quick_collections(100)
before = asyncio.new_event_loop()  # stands still after this, and is not closed
before.run_until_complete(first())
began = _resident()
print(json.dumps({"began": began, "most": asyncio.run(main())}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the memory of a process is not known")
def test_few_objects_that_hold_much_are_found() -> None:
    """Cycles of two objects and half a megabyte: those that die young, and those that were frozen in flight; also where
    another loop was there before, and stands still."""
    ran = subprocess.run([sys.executable, "-c", HEAVY], capture_output=True, text=True, timeout=120, check=True)
    said = json.loads(ran.stdout)
    print(said)
    assert said["most"] < said["began"] + 800_000_000


RUNS = """
import gc, json
from aioparallel import ParallelConsumer
from aioparallel.event_loop import quick_collections
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient

def collector():
    gc.collect(0)
    return [gc.get_threshold()[0], len(gc.callbacks), gc.get_freeze_count() > 0]

def run():
    broker = InMemoryBroker()
    broker.create_topic("t", 1)
    broker.append("t", b"v", key=b"k", partition=0)
    consumer = ParallelConsumer(
        "t", group_id="g", client=InMemoryClient(broker, "g"), until="end", max_concurrency=10_000
    )
    meanwhile = []

    async def handle(record):
        meanwhile.append(collector())

    consumer.run_sync(handle)
    return meanwhile + [collector()]

before = collector()
alone = run()
quick_collections()
print(json.dumps({"before": before, "alone": alone, "beside": run()}))
"""


def test_run_sync_leaves_the_collector_as_it_was() -> None:
    """A program goes on after it, a test run for one; what that has asked for itself stays."""
    ran = subprocess.run([sys.executable, "-c", RUNS], capture_output=True, text=True, timeout=120, check=True)
    said = json.loads(ran.stdout)
    assert said["before"][1:] == [0, False]
    assert said["alone"] == [[50_000, 1, True], said["before"]]
    assert said["beside"] == [[50_000, 1, True], [20_000, 1, True]]


BLOCKS = """
import gc, json, threading
from aioparallel.event_loop.loop import collecting_quickly, quick_collections

said = {}

def note(name):
    said[name] = [gc.get_threshold()[0], len(gc.callbacks), gc.get_freeze_count() > 0]

def block(handlers, name, begun, may_end):
    with collecting_quickly(handlers):
        begun.set()
        may_end.wait()
        note(name)

gc.set_threshold(500)
note("before")
with collecting_quickly(10_000):
    with collecting_quickly(1):
        note("within both")
    note("within one")
note("after")
try:
    with collecting_quickly():
        raise KeyboardInterrupt
except KeyboardInterrupt:
    note("after an error")

events = [(threading.Event(), threading.Event()) for _ in range(2)]
threads = [
    threading.Thread(target=block, args=(handlers, f"in thread {handlers}", *events[number]))
    for number, handlers in enumerate((20_000, 10_000))
]
for thread, (begun, _) in zip(threads, events):
    thread.start()
    begun.wait()
for thread, (_, may_end) in zip(threads, events):  # the first to begin is the first to end
    may_end.set()
    thread.join()
note("after threads")

with collecting_quickly(10_000):
    gc.callbacks.clear()
note("after it was removed")

gc.collect()
gc.freeze()
with collecting_quickly():
    pass
note("after a frozen program's")
gc.unfreeze()

with collecting_quickly(10_000):
    quick_collections()
note("asked for meanwhile")
quick_collections(30_000)
with collecting_quickly(10_000):
    note("asked for more before")
print(json.dumps(said))
"""


def test_blocks_leave_the_collector_as_it_was() -> None:
    """In whatever order they end, and however: what holds for one holds until its end, and not longer."""
    ran = subprocess.run([sys.executable, "-c", BLOCKS], capture_output=True, text=True, timeout=120, check=True)
    said = json.loads(ran.stdout)
    before = [500, 0, False]
    assert said == {
        "before": before,
        "within both": [50_000, 1, True],
        "within one": [50_000, 1, True],
        "after": before,
        "after an error": before,
        "in thread 20000": [100_000, 1, True],
        "in thread 10000": [50_000, 1, True],
        "after threads": before,
        "after it was removed": before,
        "after a frozen program's": [500, 0, True],
        "asked for meanwhile": [20_000, 1, True],
        "asked for more before": [150_000, 1, True],
    }


OTHER_LOOP = """
import asyncio, gc, json, threading
from aioparallel.event_loop.loop import collecting_quickly

def timers(loop):
    return sum("_check" in str(handle) for handle in loop._scheduled)

async def main():
    loop = asyncio.get_running_loop()
    with collecting_quickly():  # that of a consumer in another thread, say
        gc.collect(0)
        meanwhile = timers(loop)
    await asyncio.sleep(0.3)
    return [meanwhile, timers(loop)]

print(json.dumps(asyncio.run(main())))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the memory of a process is not known")
def test_nobody_looks_at_the_memory_afterwards() -> None:
    """A loop that goes on has no timer of ours any more: there was one wherever a collection has come."""
    ran = subprocess.run([sys.executable, "-c", OTHER_LOOP], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(ran.stdout) == [1, 0]


LOOPS_IN_TURN = """
import asyncio, gc, json
from aioparallel.event_loop.loop import collecting_quickly

async def step():
    gc.collect(0)
    await asyncio.sleep(0)

def timers(loop):
    return sum("_check" in str(handle) for handle in loop._scheduled)

async def wait():
    gc.collect(0)
    await asyncio.sleep(0.3)

with collecting_quickly():
    loops = [asyncio.new_event_loop() for _ in range(2)]
    for _ in range(20):
        for loop in loops:
            loop.run_until_complete(step())
    loops[0].run_until_complete(wait())
    print(json.dumps(timers(loops[0])))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the memory of a process is not known")
def test_loops_that_run_in_turn_have_one_timer_between_them() -> None:
    """Each time that one takes over from the other it begins anew, and what it began before is over."""
    ran = subprocess.run([sys.executable, "-c", LOOPS_IN_TURN], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(ran.stdout) == 1


SWITCHED_OFF = """
import asyncio, gc, json
from aioparallel.event_loop.loop import GrowthWatch

async def collections_while_it_grows():
    seen, kept, watch = [], [], GrowthWatch()
    gc.callbacks.append(lambda phase, info: seen.append(phase))
    watch.begin()
    for _ in range(6):
        kept.append(bytearray(50_000_000))
        await asyncio.sleep(0.11)
    watch.end()
    del gc.callbacks[:]
    return len(seen) > 0

async def main():
    found = [await collections_while_it_grows()]
    gc.disable()
    found.append(await collections_while_it_grows())
    gc.enable()
    gc.set_threshold(0)
    found.append(await collections_while_it_grows())
    return found

print(json.dumps(asyncio.run(main())))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the memory of a process is not known")
def test_a_collector_that_is_switched_off_stays_so_whatever_the_process_takes() -> None:
    """By either of the two ways."""
    ran = subprocess.run([sys.executable, "-c", SWITCHED_OFF], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(ran.stdout) == [True, False, False]
