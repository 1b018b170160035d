"""``aioparallel bench``: its options, what it says limits, and a whole run on the embedded broker."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from aioparallel.cli.bench.command import BenchSettings
from aioparallel.cli.bench.measuring import measure
from aioparallel.cli.bench.showing import Seen, limit_of
from aioparallel.errors import ConfigurationError


@pytest.mark.parametrize(
    ("wrong", "option"),
    [
        ({"records": 0}, "records"),
        ({"concurrency": -1}, "concurrency"),
        ({"handler_ms": -0.1}, "handler_ms"),
        ({"topic": "orders"}, "topic"),
        ({"records": 1_000_000}, "records"),
    ],
)
def test_wrong_options_are_named(wrong: dict[str, Any], option: str) -> None:
    """One message names the option; the embedded broker has little room, and no topics of yours."""
    with pytest.raises(ConfigurationError, match=option):
        BenchSettings(**wrong)


@pytest.mark.parametrize(
    ("seen", "hot", "limit"),
    [
        (Seen(handled=100, seconds=1.0, cpu=0.9, busy=50.0), 20, "CPU: the event loop's core is 90% busy"),
        (Seen(handled=100, seconds=1.0, cpu=0.1, busy=5.0), 20, "the order of keys: 20 records of key b'hot'"),
        (Seen(handled=100, seconds=1.0, cpu=0.0, busy=9.0), 2, "concurrency: 10 handlers run nearly all the time"),
        (Seen(handled=100, seconds=9.0, cpu=0.1, busy=5.0), 20, "reading: neither CPU nor handlers"),
    ],
)
def test_it_says_what_limits(seen: Seen, hot: int, limit: str) -> None:
    """From the CPU of the loop, the longest lane and what handlers took. Records without a key have no lane."""
    seen.keys = {(0, at): b"hot" if at < hot else None if at < 60 else b"%d" % at for at in range(100)}
    assert limit_of(BenchSettings(concurrency=10), seen).startswith(limit)


async def test_a_run_is_checked_and_shown() -> None:
    """On the embedded broker: rates of both, latency, the verdict."""
    shown = io.StringIO()
    settings = BenchSettings(records=500, keys=20, partitions=2, handler_ms=1.0, concurrency=20)
    assert await measure(settings, Console(file=shown, width=160))
    text = shown.getvalue()
    for part in ("plain loop", "ParallelConsumer", "µs a record", "p50", "what limits", "passed: each record once"):
        assert part in text
