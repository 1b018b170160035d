"""What chaos has shown and is not mended yet: a seed for each. Whoever mends it takes it out of here
and of ``NOT_YET``."""

from __future__ import annotations

import asyncio
import random

import pytest

from aioparallel.options import Ordering
from aioparallel.testing.memory import InMemoryBroker
from tests.unit.engine.memory import Seen, consumer_of
from tests.unit.virtual_time import VirtualLoop

from .plan import NOT_YET
from .play import play

# With this ingredient alone: a seed, and what its play says.
SHOWN_BY = {
    "cancelled while leaving": (391, "resources are not closed"),
    "commit_now is all": (19, "commit_now() left out"),
    "less room than partitions": (5, "stall"),
    "no timer after closing": (1, "a timer is left"),
    "put back counts": (14, "buffered ="),
    "swallow_and_uncancel": (4, "calls handlers stuck that are not"),
}


@pytest.mark.parametrize(
    "ingredient",
    [pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=NOT_YET[name])) for name in SHOWN_BY],
)
def test_known(ingredient: str) -> None:
    """What this ingredient shows is not so."""
    seed, said = SHOWN_BY[ingredient]
    played = play(seed, without=[name for name in NOT_YET if name != ingredient])
    assert not [violation for violation in played.violations if said in violation]


@pytest.mark.xfail(strict=True, reason=NOT_YET["a nearly full buffer"])
def test_a_nearly_full_buffer_is_filled_again() -> None:
    """One partition in order, records of several sizes, of which the buffer holds some dozens: all are handled."""
    rng = random.Random(0)

    async def main() -> None:
        broker = InMemoryBroker()
        broker.create_topic("t", 1)
        for _ in range(300):
            broker.append("t", b"x" * rng.randint(500, 1_500))
        async with consumer_of(broker, ordering=Ordering.PARTITION, max_buffered_bytes=64_000) as consumer:
            run = asyncio.ensure_future(consumer.run(Seen(0.001)))
            await asyncio.sleep(60)
            seen = consumer.stats()
            consumer.stop()
            await run
        assert seen.ended == 300, seen

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
