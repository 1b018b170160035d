"""Members of the new group protocol (KIP-848) through three clients in one group: ours, librdkafka and Java's; and ours
beside a classic member of each, while the group changes its protocol."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from aioparallel.clients.aiokafka.group_admin import GroupAdmin
from aioparallel.testing import LocalKafka
from tests.interop.conftest import give_up
from tests.support.interop.group import Group, Place
from tests.support.interop.group_members import KINDS, Kind, Member, Protocol, member_of
from tests.support.interop.java_programs import JavaProgramsMissing
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(600, func_only=True)]

PARTITIONS, PORTION = 8, 400
EVERY = frozenset(range(PARTITIONS))
QUICK_PAIRS = (("ours", "java"), ("librdkafka", "ours"))
PAIRS = [
    pytest.param(*pair, id="-".join(pair), marks=() if pair in QUICK_PAIRS else pytest.mark.slow)
    for pair in itertools.permutations(KINDS, 2)
]
WITH_JAVA_SLOW = [pytest.param(kind, marks=pytest.mark.slow if kind == "java" else ()) for kind in KINDS]


class Play:
    """A topic of 8 partitions, and the members of its group that have ever run."""

    def __init__(self, group: Group, stack: AsyncExitStack, logs: Path) -> None:
        self.group = group
        self.members: list[Member] = []
        self._stack = stack
        self._logs = logs

    async def join(self, kind: Kind, protocol: Protocol = "consumer") -> Member:
        """One more member."""
        try:
            member = member_of(kind, self.group, self._logs, protocol)
        except JavaProgramsMissing as missing:
            give_up(str(missing), os.environ)
        self.members.append(await self._stack.enter_async_context(member))
        return member

    async def share(self, *members: Member) -> None:
        """Wait until these share all partitions evenly, nobody else has one, and more records are handled."""
        sizes = sorted(len(EVERY) // len(members) + (n < len(EVERY) % len(members)) for n in range(len(members)))

        def is_even() -> bool:
            for member in self.members:
                member.check()
            found = [member.has for member in members]
            return sorted(map(len, found)) == sizes and frozenset().union(*found) == EVERY

        await until(is_even, what=lambda: f"even shares, and not {[sorted(one.has) for one in members]}")
        new = await self.fill()
        owners = {partition: member for member in members for partition in member.has}
        await until(lambda: all(owners[place.partition].ran[place] for place in new), what="records at their owners")

    async def fill(self) -> list[Place]:
        """As many records in each partition."""
        count = self.group.counts[0] if self.group.counts else 0
        each = PORTION // PARTITIONS
        messages = [Message(None, b"%d" % n, partition=n % PARTITIONS) for n in range(PORTION)]
        await asyncio.to_thread(fill, self.group.bootstrap_servers, self.group.topic, messages)
        self.group.counts = [count + each] * PARTITIONS
        return [Place(partition, count + n) for partition in EVERY for n in range(each)]

    async def end(self) -> None:
        """All leave. Each record was handled once, and is committed; no member lost a partition."""
        for member in self.members:
            await member.leave()
        ran = sum((member.ran for member in self.members), Counter[Place]())
        assert ran == Counter(self.group.places())
        assert [member.lost for member in self.members] == [0] * len(self.members)
        found = {partition: one.offset for partition, one in (await self.group.committed()).items()}
        assert found == dict(enumerate(self.group.counts))

    async def kind(self) -> str:
        """The type of the group."""
        async with GroupAdmin(self.group.bootstrap_servers) as admin:
            return (await admin.describe_group(self.group.name)).type


@pytest_asyncio.fixture
async def play(quick_kafka: LocalKafka, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Play]:
    topic = request.node.name.translate(str.maketrans("[]", "--"))
    await quick_kafka.create_topic(topic, PARTITIONS)
    async with AsyncExitStack() as stack:
        yield Play(Group(quick_kafka.bootstrap_servers, topic, f"group-of-{topic}"), stack, tmp_path)


@pytest.mark.parametrize(("one", "other"), PAIRS)
async def test_two_share_and_one_leaves(play: Play, one: Kind, other: Kind) -> None:
    """The second gets half of the first's partitions, and all when that leaves."""
    first = await play.join(one)
    await play.share(first)
    second = await play.join(other)
    await play.share(first, second)
    await first.leave()
    await play.share(second)
    await play.end()


async def test_three_clients_in_one_group(play: Play) -> None:
    """They share, whoever comes and goes."""
    members = [await play.join(kind) for kind in KINDS]
    await play.share(*members)
    await members[1].leave()
    await play.share(members[0], members[2])
    back = await play.join("librdkafka")
    await play.share(members[0], members[2], back)
    await members[0].leave()
    await play.share(members[2], back)
    await play.end()


@pytest.mark.parametrize("kind", WITH_JAVA_SLOW)
async def test_a_visit_converts_the_group_and_back(play: Play, kind: Kind) -> None:
    """A classic group becomes one of the new protocol when our member joins, and a classic one again when that
    leaves."""
    classic = await play.join(kind, "classic")
    await play.share(classic)
    assert await play.kind() == "classic"
    ours = await play.join("ours")
    await play.share(classic, ours)
    assert await play.kind() == "consumer"
    await ours.leave()
    await play.share(classic)
    assert await play.kind() == "classic"
    await play.end()


@pytest.mark.parametrize("kind", WITH_JAVA_SLOW)
async def test_a_classic_group_migrates_and_back(play: Play, kind: Kind) -> None:
    """Ours takes over from a classic member, and a classic member from ours."""
    classic = await play.join(kind, "classic")
    await play.share(classic)
    ours = await play.join("ours")
    await play.share(classic, ours)
    await classic.leave()
    await play.share(ours)
    assert await play.kind() == "consumer"
    back = await play.join(kind, "classic")
    await play.share(ours, back)
    assert await play.kind() == "consumer"
    await ours.leave()
    await play.share(back)
    assert await play.kind() == "classic"
    await play.end()
