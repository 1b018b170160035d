"""The pulse of a loop, as a thread hears it. On real threads and locks."""

from __future__ import annotations

import asyncio
import threading
import time

from aioparallel.engine.watch.ping import Ping
from tests.support.waiting import until


def test_a_pulse_wakes_who_waits() -> None:
    """Each beat once, the end too; no beat is no wake-up, and nobody who listens does not hold up the loop."""
    ping = Ping()
    ping.ping()  # nobody waits: it comes back
    assert ping.wait(0)
    assert not ping.wait(0.001)
    heard: list[bool] = []

    def listen() -> None:
        while not ping.ended:
            heard.append(ping.wait(60))

    thread = threading.Thread(target=listen)
    thread.start()
    for count in range(1, 6):
        ping.ping()
        asyncio.run(until(lambda count=count: len(heard) == count))  # type: ignore[misc]
    ping.end()
    thread.join(60)
    assert heard == [True] * 6


def test_who_is_late_to_hear_is_no_burden() -> None:
    """Beats that nobody takes are one, and what is said too late of one is not taken for the next."""
    ping = Ping()
    ping.ping()
    ping.ping()
    assert ping.wait(0)
    assert not ping.wait(0)
    ping._hasty = 0  # on a busy machine one of those before was slow
    began = time.monotonic()
    ping.ping()
    assert time.monotonic() - began >= 0.001  # it has waited for somebody
    assert ping.wait(0)


def test_beside_threads_that_compute_beats_wait_for_nobody() -> None:
    """They keep the interpreter's lock for 5 ms each: waited for, a beat would last for as long as all of them."""
    ping = Ping()
    over = False

    def listen() -> None:
        while not ping.ended:
            ping.wait(60)

    def compute() -> None:
        while not over:
            sum(range(1_000))

    threads = [threading.Thread(target=listen), *(threading.Thread(target=compute) for _ in range(4))]
    for thread in threads:
        thread.start()
    try:
        beats = []
        for _ in range(50):
            began = time.thread_time()
            ping.ping()
            beats.append(ping._hasty)
            assert time.thread_time() - began < 1
            time.sleep(0.001)
    finally:
        over = True
        ping.end()
        for thread in threads:
            thread.join(60)
    assert beats[-1] > 0
    assert len(set(beats)) > 40  # counted down, not waited for
