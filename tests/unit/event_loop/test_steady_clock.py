"""The time of this process."""

from __future__ import annotations

import time

import pytest

from aioparallel.event_loop import steady_clock
from aioparallel.event_loop.steady_clock import SteadyClock, steady_time


def test_it_begins_with_the_wall_clock() -> None:
    """Seconds since the epoch."""
    assert steady_time() == pytest.approx(time.time(), abs=60)


@pytest.mark.parametrize("put", [3_600.0, -3_600.0])
def test_nobody_can_put_it(put: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on as seconds pass."""

    class Clocks:
        wall, steady = 1e9, 7.0

        def time(self) -> float:
            return self.wall

        def monotonic(self) -> float:
            return self.steady

    clocks = Clocks()
    monkeypatch.setattr(steady_clock, "time", clocks)
    clock = SteadyClock()
    assert clock() == 1e9
    clocks.wall += put + 2
    clocks.steady += 2
    assert clock() == 1e9 + 2
