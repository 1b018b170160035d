"""The pulse of a loop, as a thread hears it. On real threads and locks."""

from __future__ import annotations

import asyncio
import threading
import time

from aioparallel.engine.pulse import Pulse
from tests.support.waiting import until


def test_a_pulse_wakes_who_waits() -> None:
    """Each beat once, the end too; no beat is no wake-up, and nobody who listens does not hold up the loop."""
    pulse = Pulse()
    pulse.beat()  # nobody waits: it comes back
    assert pulse.wait(0)
    assert not pulse.wait(0.001)
    heard: list[bool] = []

    def listen() -> None:
        while not pulse.ended:
            heard.append(pulse.wait(60))

    thread = threading.Thread(target=listen)
    thread.start()
    for count in range(1, 6):
        pulse.beat()
        asyncio.run(until(lambda count=count: len(heard) == count))  # type: ignore[misc]
    pulse.end()
    thread.join(60)
    assert heard == [True] * 6


def test_who_is_late_to_hear_is_no_burden() -> None:
    """Beats that nobody takes are one, and what is said too late of one is not taken for the next."""
    pulse = Pulse()
    pulse.beat()
    pulse.beat()
    assert pulse.wait(0)
    assert not pulse.wait(0)
    pulse._hasty = 0  # on a busy machine one of those before was slow
    began = time.monotonic()
    pulse.beat()
    assert time.monotonic() - began >= 0.001  # it has waited for somebody
    assert pulse.wait(0)


def test_beside_threads_that_compute_beats_wait_for_nobody() -> None:
    """They keep the interpreter's lock for 5 ms each: waited for, a beat would last for as long as all of them."""
    pulse = Pulse()
    over = False

    def listen() -> None:
        while not pulse.ended:
            pulse.wait(60)

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
            pulse.beat()
            beats.append(pulse._hasty)
            assert time.thread_time() - began < 1
            time.sleep(0.001)
    finally:
        over = True
        pulse.end()
        for thread in threads:
            thread.join(60)
    assert beats[-1] > 0
    assert len(set(beats)) > 40  # counted down, not waited for
