"""The state of the machine during a measurement: CPU time that the hypervisor took, frequency, and speed.

A fixed loop is timed before and after each run. If its time has changed, the machine's speed has changed.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["MOVED", "Machine", "Surroundings", "calibrate", "moved"]

MOVED: Final = 0.05
"""A round is spoilt if its calibration loops differ by more than this part."""
PASSES: Final = 8
"""The fastest pass counts: others may be interrupted."""
PASSES_BESIDE_OTHERS: Final = 32
"""Passes if no core is reserved: the broker still works for some tenths of a second after a run."""
STEPS: Final = 60_000
STEAL: Final = 7
"""Index of steal in a line of ``/proc/stat``, see proc_stat(5)."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The machine during one run.

    ``before``, ``after``: milliseconds of the calibration loop. ``steal``: part of the CPU time of all cores that the
    hypervisor gave to others. ``mhz``: mean of all cores at the end. None: not available.
    """

    before: float
    after: float
    steal: float | None
    mhz: float | None


class Machine:
    """Observes the machine from its creation to :meth:`seen`. ``cpu``: the core that counts; None: any."""

    def __init__(self, cpu: int | None = None) -> None:
        self._cpu = cpu
        self._before = calibrate(cpu)
        self._ticks = _ticks()

    def seen(self) -> Surroundings:
        """The state of the machine in between."""
        now = _ticks()
        after = calibrate(self._cpu)
        steal = None
        if self._ticks and now:
            spent = [end - start for end, start in zip(now, self._ticks, strict=True)]
            steal = round(spent[STEAL] / max(sum(spent), 1), 4)
        return Surroundings(self._before, after, steal, _mhz())


def calibrate(cpu: int | None = None) -> float:
    """Milliseconds of a fixed loop over dictionaries, integers and calls, like the library's work. ``cpu``: the core to
    run it on."""
    best = float("inf")
    with _kept_to(cpu):
        for _ in range(PASSES_BESIDE_OTHERS if cpu is None else PASSES):
            began = time.perf_counter()
            _loop()
            best = min(best, time.perf_counter() - began)
    return round(best * 1e3, 4)


@contextlib.contextmanager
def _kept_to(cpu: int | None) -> Iterator[None]:
    if cpu is None:
        yield
        return
    allowed = os.sched_getaffinity(0)  # of this thread
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _loop() -> int:
    kept: dict[int, int] = {}
    add = kept.get
    total = 0
    for step in range(STEPS):
        place = step & 4095
        kept[place] = total = (add(place, 0) + step) & 0xFFFF
    return total


def moved(seen: Sequence[Surroundings]) -> bool:
    """Whether the calibration loops of a round differ by more than :data:`MOVED`."""
    times = [each for one in seen for each in (one.before, one.after)]
    return bool(times) and max(times) > min(times) * (1 + MOVED)


def _ticks() -> list[int] | None:
    """CPU times of all cores together."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    found = [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:9]]
    return found if len(found) > STEAL else None


def _mhz() -> float | None:
    files = sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    found = [int(file.read_text()) / 1000 for file in files]
    cpuinfo = Path("/proc/cpuinfo")
    if not found and cpuinfo.exists():
        found = [float(mhz) for mhz in re.findall(r"^cpu MHz\s*: ([0-9.]+)", cpuinfo.read_text(), re.MULTILINE)]
    return round(sum(found) / len(found), 1) if found else None
