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
    assert said["beside"] == [[50_000, 1, True]] * 2
