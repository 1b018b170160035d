"""What ``Deduplicate`` cannot work with is refused, each at the first possible moment."""

from __future__ import annotations

import pytest

from aioparallel.config.handling import Ordering
from aioparallel.config.policies import Deduplicate, FailurePolicy
from aioparallel.consumer import ParallelConsumer
from aioparallel.records.errors import ConfigurationError, TopicNotFound
from aioparallel.testing.memory import InMemoryClient
from tests.support.memory.consuming import GROUP, QUICK, consumer_of
from tests.support.memory.deduplicating import SEEN, broker_of, deduplicating


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"deduplicate": "seen"}, "must be a Deduplicate"),
        ({"deduplicate": Deduplicate("d"), "failures": FailurePolicy(retry=QUICK, dead_letter="d")}, "its own"),
        (
            {"deduplicate": Deduplicate("s", by="key"), "failures": FailurePolicy(retry=QUICK, dead_letter="d")},
            "dead letters",
        ),
        ({"deduplicate": Deduplicate("s", by="key"), "ordering": Ordering.UNORDERED}, "one after the other"),
        ({"deduplicate": Deduplicate("s", by="key"), "order_by": lambda record: record.value}, "one after the other"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options: dict[str, object], says: str) -> None:
    """With what to do in its place."""
    with pytest.raises(ConfigurationError, match=says):
        deduplicating(broker_of(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"topic": ""}, "Deduplicate topic"),
        ({"topic": 5}, "Deduplicate topic"),
        ({"topic": "s", "by": "partition"}, "Deduplicate by"),
        ({"topic": "s", "remember": 0}, "Deduplicate remember"),
        ({"topic": "s", "remember": True}, "Deduplicate remember"),
    ],
)
def test_what_a_policy_cannot_be_is_refused(arguments: dict[str, object], says: str) -> None:
    """With its name."""
    with pytest.raises(ConfigurationError, match=says):
        Deduplicate(**arguments)  # type: ignore[arg-type]


async def test_a_topic_that_cannot_hold_it_is_refused_when_connecting() -> None:
    """Missing, not compacted, with too few partitions, or one that is read."""
    broker = broker_of(2)
    with pytest.raises(TopicNotFound, match=r"nowhere \(Deduplicate\(topic=\): with cleanup.policy=compact"):
        await deduplicating(broker, deduplicate=Deduplicate("nowhere")).__aenter__()
    broker.create_topic("small", 1)
    broker.make_compacted("small")
    with pytest.raises(ConfigurationError, match="has 1 partitions"):
        await deduplicating(broker, deduplicate=Deduplicate("small")).__aenter__()
    broker.make_compacted(SEEN, compacted=False)
    with pytest.raises(ConfigurationError, match=r"cleanup\.policy"):
        await deduplicating(broker).__aenter__()
    for topics in ("seen", ["t", "seen"]):
        with pytest.raises(ConfigurationError, match="topics that are read"):
            consumer_of(broker, topics, deduplicate=Deduplicate(SEEN))


async def test_it_needs_a_producer() -> None:
    """Beside a client of the user's own."""
    broker = broker_of()
    with pytest.raises(ConfigurationError, match="producer"):
        ParallelConsumer("t", group_id=GROUP, client=InMemoryClient(broker, GROUP), deduplicate=Deduplicate(SEEN))
