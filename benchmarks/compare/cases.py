"""The cases on which two commits are compared: the paths of a record that must not become slower."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.cases import Case
from benchmarks.contestants.observing import Observed
from benchmarks.workload import Shape

__all__ = ["COMPARED", "DEFAULT"]

QUICK: Final = Shape(300_000, 2_000, 8)
SLEEPING: Final = replace(QUICK, sleep=(10_000,))

_CASES = (
    Case("no-op-key", "No-op handler, 2,000 keys, order by key", QUICK),
    Case("no-op-unordered", "No-op handler, no order", QUICK, ordering="unordered"),
    Case("batches", "No-op handler of 500 records at once, by key", replace(QUICK, keys=50_000), batch=500),
    Case("sleep-1000", "Handlers of 10 ms, 1,000 at once", replace(SLEEPING, records=40_000), concurrency=1_000),
    Case("sleep-2000", "Handlers of 10 ms, 2,000 at once", replace(SLEEPING, keys=20_000), concurrency=2_000),
    Case(
        "sleep-20000", "Handlers of 100 ms, 20,000 at once", Shape(100_000, 100_000, 8, (100_000,)), concurrency=20_000
    ),
    Case("produce", "One output for each record", replace(QUICK, records=60_000), handler="produce"),
    Case("transactions", "One output for each record, in transactions", replace(QUICK, records=60_000),
         handler="transactions", concurrency=1_000),
    Case("map", "parallel_map by key, without Kafka", QUICK, handler="map"),
    Case("queue", "No-op handler of a KMQ queue", replace(QUICK, records=30_000), handler="queue",
         ordering="unordered", concurrency=1_000),
)  # fmt: skip

_OBSERVERS: Final[dict[Observed, str]] = {
    "unused": "metrics and traces installed, imported and not used",
    "metrics": "with metrics for Prometheus",
    "traces": "with traces, 1 % sampled",
}
_OBSERVED = tuple(
    replace(case, name=f"{name}-{observed}", title=f"{case.title}, {how}", observed=observed)
    for observed, how in _OBSERVERS.items()
    for name, case in (("no-op", _CASES[0]), ("sleep", _CASES[3]))
)
_ALL = (*_CASES, *_OBSERVED)

COMPARED: Final = {case.name: replace(case, handler="sleep") if any(case.shape.sleep) else case for case in _ALL}
"""The cases by name. Runs are short, so that both sides of a pair run within seconds."""

DEFAULT: Final = tuple(case.name for case in _CASES)
"""Without those of which only the second side is observed: they show what that costs if both revisions are the same."""
