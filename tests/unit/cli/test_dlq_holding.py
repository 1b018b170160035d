"""Who may settle letters of a topic: what the members of the group agree on, and what each makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment

from aioparallel.cli.dlq.holding import Hold
from aioparallel.cli.dlq.marks import MarksRefused
from aioparallel.group.client import Client, Generation

from .dead_letters import MINE, P0, TOPIC


class Topics:
    """The part of a cluster's metadata that an assignor needs: each topic has two partitions."""

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0, 1}


class Silent:
    """A client that joins and never fetches anything."""

    def subscribe(self, topics: object, listener: object) -> None: ...

    async def fetch(self, quotas: Mapping[object, int]) -> list[object]:
        await asyncio.Event().wait()
        return []


def holders(members: Mapping[str, tuple[str, str | None]]) -> dict[str, list[str]]:
    """Who is given what; ``members``: by name, the topic, and the name under which one says to hold it."""
    said: dict[str, Any] = {}
    for name, (topic, held_as) in members.items():
        hold = Hold(topic, "g")
        hold.claim = held_as
        said[name] = hold.assignor.metadata([topic])
    given = Hold(TOPIC, "g").assignor.assign(cast("ClusterMetadata", Topics()), said)
    assert all(numbers == [0, 1] for one in given.values() for _, numbers in one.assignment)
    return {name: [topic for topic, _ in one.assignment] for name, one in given.items()}


def test_one_member_has_a_topic() -> None:
    """The first by name where nobody holds it, else who does; a claim under another name is void. Topics are apart."""
    assert holders({"b": ("t", None), "a": ("t", None)}) == {"a": ["t"], "b": []}
    assert holders({"b": ("t", "b"), "a": ("t", None)}) == {"a": [], "b": ["t"]}
    assert holders({"b": ("t", "b"), "a": ("t", "was")}) == {"a": [], "b": ["t"]}
    assert holders({"a": ("t", None), "b": ("u", None), "c": ("u", None)}) == {"a": ["t"], "b": ["u"], "c": []}


def hold_of() -> Hold:
    """A member to which one with this assignor assigns."""
    hold = Hold(TOPIC, "g")
    given = hold.assignor.assign(cast("ClusterMetadata", Topics()), {"me": hold.assignor.metadata([TOPIC])})
    hold.assignor.on_assignment(given["me"])
    return hold


async def held() -> Hold:
    """A place that was given."""
    hold = hold_of()
    taking = asyncio.create_task(hold.take(cast("Client", Silent())))
    await asyncio.sleep(0)
    assert not taking.done()
    hold.assigned([P0], MINE)
    await taking
    return hold


async def test_a_place_is_kept_over_generations() -> None:
    """While the members agree anew whoever asks waits; the next generation is the answer."""
    hold = await held()
    assert await hold.generation(1.0) == MINE
    await hold.revoked([P0])
    asking = asyncio.create_task(hold.generation(5.0))
    await asyncio.sleep(0)
    assert not asking.done()
    hold.assigned([P0], Generation(8, "me"))
    assert await asking == Generation(8, "me")
    await hold.revoked([P0])
    with pytest.raises(MarksRefused, match=r"did not stabilise within 0\.01 s"):
        await hold.generation(0.01)
    await hold.release()


async def test_a_topic_that_somebody_else_holds() -> None:
    """Taking it says so, and goes on saying so."""
    hold = hold_of()
    taking = asyncio.create_task(hold.take(cast("Client", Silent())))
    await asyncio.sleep(0)
    hold.assigned([], MINE)
    with pytest.raises(MarksRefused, match=f"another replay or drop of {TOPIC} is running in group 'g'"):
        await taking
    hold.assigned([P0], Generation(8, "me"))
    with pytest.raises(MarksRefused, match="is running"):
        await hold.generation(1.0)
    await hold.release()


@pytest.mark.parametrize("noticed", [True, False])
async def test_a_lost_place_is_lost_for_good(noticed: bool) -> None:
    """Also when it comes back under another member id before anybody has noticed: somebody else may have had it."""
    hold = await held()
    if noticed:
        hold.lost([P0])
    else:
        await hold.revoked([P0])
    hold.assigned([P0], Generation(9, "me again"))
    with pytest.raises(MarksRefused, match="is lost"):
        await hold.generation(1.0)
    await hold.release()


async def test_brokers_assign_no_place() -> None:
    """A consumer of the new protocol has joined the group, so that the brokers assign parts of the topic to all."""
    hold = await held()
    await hold.revoked([P0])
    hold.assignor.on_assignment(ConsumerProtocolMemberAssignment(0, [(TOPIC, [0])], None))
    hold.assigned([P0], MINE)
    with pytest.raises(MarksRefused, match="group 'g' has other consumers as members"):
        await hold.generation(1.0)
    await hold.release()
