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
    began = time.monotonic()
    pulse.beat()
    assert time.monotonic() - began >= 0.001  # it has waited for somebody
    assert pulse.wait(0)
