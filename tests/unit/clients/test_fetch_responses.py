"""The bytes of fetch responses belong to the data that aiokafka holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from aiokafka.protocol.fetch import FetchRequest

from aioparallel.clients.aiokafka.fetch_responses import FetchResponses
from aioparallel.clients.aiokafka.internals import Fetcher, SubscriptionState
from aioparallel.records.record import TopicPartition

P = TopicPartition("t", 0)


def fetch(offset: int) -> FetchRequest:
    """A request for the partition from this offset on."""
    return FetchRequest(100, 1, 1_000, 0, [("t", [(0, offset, 1_000)])])


async def test_a_late_answer_does_not_replace_the_bytes() -> None:
    """The old leader's answer about an earlier position comes after the data of the new leader. aiokafka discards
    it: decoded with its bytes, a record that aiokafka cannot decode would be taken for one that is not there."""
    answers: dict[int, bytes] = {5: b"old", 9: b"new"}

    async def send(_node: int, request: Any, **_options: object) -> object:
        ((_, ((_, offset, _),)),) = request.topics
        return SimpleNamespace(topics=[("t", [(0, 0, 100, answers[offset])])])

    state = SimpleNamespace(position=9, has_valid_position=True)
    assignment = SimpleNamespace(active=True, state_value=lambda partition: state if partition == P else None)
    subscriptions = SimpleNamespace(subscription=SimpleNamespace(assignment=assignment))
    fetcher = SimpleNamespace(_client=SimpleNamespace(send=send), _records={})
    responses = FetchResponses(cast("Fetcher", fetcher), cast("SubscriptionState", subscriptions))
    await responses.send(2, fetch(9))
    await responses.send(1, fetch(5))
    assert responses.taken(P) == b"new"
    assert responses.taken(P) == b""


async def test_an_answer_for_an_earlier_assignment_of_the_partition_is_dropped() -> None:
    """In the new group protocol a partition may go and come back while its fetch is in flight, with the topic deleted
    and created again. Offset and name are the same, and aiokafka compares nothing else."""
    new = SimpleNamespace(position=0, has_valid_position=True)
    states = {P: SimpleNamespace(position=0, has_valid_position=True)}

    async def send(_node: int, _request: Any, **_options: object) -> object:
        states[P] = new
        return SimpleNamespace(topics=[("t", [(0, 0, 100, b"old")])])

    assignment = SimpleNamespace(active=True, state_value=states.get)
    subscriptions = SimpleNamespace(subscription=SimpleNamespace(assignment=assignment))
    fetcher = SimpleNamespace(_client=SimpleNamespace(send=send), _records={})
    responses = FetchResponses(cast("Fetcher", fetcher), cast("SubscriptionState", subscriptions))
    answer = await responses.send(1, fetch(0))
    assert [list(partitions) for _, partitions in answer.topics] == [[]]
    assert responses.taken(P) == b""
