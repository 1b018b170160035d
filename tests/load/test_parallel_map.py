"""Ten million items of a generator: memory is flat."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psutil
import pytest

from aioparallel import parallel_map
from aioparallel.event_loop.loop import loop_factory, quick_collections

pytestmark = pytest.mark.slow

_ITEMS = 10_000_000


@pytest.mark.timeout(900)
@pytest.mark.parametrize("in_order", [False, True])
def test_ten_million_items_take_no_memory(in_order: bool) -> None:
    """At most 5 MB more than after the first hundred thousand; each item once, ten thousand keys."""
    process = psutil.Process()
    sizes: list[int] = []

    def items() -> Iterator[int]:
        for number in range(_ITEMS):
            if number % 100_000 == 0 and number:
                sizes.append(process.memory_info().rss)
            yield number

    async def double(number: int) -> int:
        return 2 * number

    async def main() -> int:
        total = 0
        async for outcome in parallel_map(double, items(), key=lambda n: n % 10_000, in_order=in_order):
            total += outcome.result()
        return total

    quick_collections()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        assert runner.run(main()) == _ITEMS * (_ITEMS - 1)
    grown = (max(sizes) - sizes[0]) / 2**20
    print(f"{sizes[0] / 2**20:.1f} MiB after 100,000 items, {grown:.2f} MiB more at most")
    assert grown <= 5
