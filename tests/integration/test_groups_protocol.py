"""``aioparallel groups`` and ``offsets`` with groups whose partitions the brokers assign (KIP-848)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from aioparallel import ParallelConsumer, Record
from aioparallel.clients.aiokafka.group_admin import GroupAdmin
from aioparallel.clients.messages.consumer_groups import LEAVE
from aioparallel.group.client import Committed
from aioparallel.offsets import encode_offset_map
from aioparallel.records.record import TopicPartition
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.integration.messages.test_consumer_group import GroupMember, group_of
from tests.integration.test_groups_trouble import command
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import until

pytestmark = pytest.mark.real


async def shown(servers: str, group: str) -> Mapping[str, Any]:
    """The group as JSON."""
    ran = await command(servers, "groups", "show", group, "--json")
    assert ran.exit_code == 0, ran.output
    whole: Mapping[str, Any] = json.loads(ran.stdout.splitlines()[0])
    return whole


async def test_what_a_rebalance_waits_for(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Which member still has to give away what, and who waits for it."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(4)
    names = {f"{topic}:{number}" for number in range(4)}
    async with group_of(local_kafka, topic) as group:
        first, second = GroupMember(group), GroupMember(group)
        await first.join()
        await second.heartbeat(**group.joining)
        kept = await first.until(lambda found: len(found) == 2)
        stays = {f"{topic}:{number}" for number in kept}
        before = first.epoch

        whole = await shown(servers, group.name)
        assert (whole["state"], whole["type"], whole["assignor"]) == ("Reconciling", "consumer", "uniform")
        assert whole["group_epoch"] == whole["assignment_epoch"] == before + 1
        by_id = {one["member_id"]: one for one in whole["members"]}
        giving, waiting = by_id[first.member_id], by_id[second.member_id]
        assert giving["epoch"] == before
        assert {*giving["partitions"]} == names
        assert {*giving["target"]} == stays
        assert {*giving["giving_away"]} == {*waiting["waiting_for"]} == {*waiting["target"]} == names - stays
        assert giving["waiting_for"] == waiting["giving_away"] == waiting["partitions"] == []
        ran = await command(servers, "groups", "show", group.name)
        assert "; gives away " in ran.stdout
        assert "; waits for " in ran.stdout
        listed = await command(servers, "groups", "list", "--json")
        (one,) = [found for found in map(json.loads, listed.stdout.splitlines()) if found["group"] == group.name]
        assert (one["state"], one["type"], len(one["members"])) == ("Reconciling", "consumer", 2)

        first.owned = kept
        await first.heartbeat(topic_partitions=group.of(*sorted(kept)))
        second.owned = await second.until(bool)
        await second.heartbeat(topic_partitions=group.of(*sorted(second.owned)))
        whole = await shown(servers, group.name)
        assert whole["state"] == "Stable"
        for member in whole["members"]:
            assert member["epoch"] == whole["group_epoch"]
            assert member["partitions"] == member["target"]
            assert member["giving_away"] == member["waiting_for"] == []
        for member_id in by_id:
            await group.heartbeat(member_id, LEAVE)


CHANGES = (("skip", "{topic}:0:7"), ("redo", "{topic}:0:9"), ("rewind", "--by", "2"), ("import", "{file}"))


async def test_offsets_of_a_group_change_while_it_has_no_members(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path
) -> None:
    """As those of a classic group. The group stays one of its type."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    file = tmp_path / "positions.json"
    fill(servers, topic, [Message(None, b"x") for _ in range(100)])
    async with group_of(local_kafka, topic) as group:
        member = GroupMember(group)
        await member.join()
        await group.heartbeat(member.member_id, LEAVE)
        async with GroupAdmin(servers) as admin:
            position = Committed(7, encode_offset_map(7, 99, [7, 50]))
            assert set((await admin.commit(group.name, {TopicPartition(topic, 0): position})).values()) == {0}
        whole = await shown(servers, group.name)
        assert (whole["state"], whole["type"], whole["members"], whole["remaining"]) == ("Empty", "consumer", [], 2)
        ran = await command(servers, "offsets", "export", group.name, str(file))
        assert (ran.exit_code, "WARNING" in ran.stderr) == (0, False)

        member = GroupMember(group)
        await member.join()
        ran = await command(servers, "offsets", "export", group.name)
        assert (ran.exit_code, "WARNING these positions change" in ran.stderr) == (0, True)
        for name, *arguments in CHANGES[:-1]:  # what would be imported is stored already
            change = ["offsets", name, group.name, *(one.format(topic=topic) for one in arguments)]
            ran = await command(servers, *change)
            assert (ran.exit_code, "--execute would be refused now" in ran.stderr) == (0, True), ran.output
            ran = await command(servers, *change, "--execute")
            assert (ran.exit_code, "has 1 member" in ran.stderr) == (1, True), ran.output
        await group.heartbeat(member.member_id, LEAVE)

        for name, *arguments in CHANGES:
            change = ["offsets", name, group.name, *(one.format(topic=topic, file=file) for one in arguments)]
            ran = await command(servers, *change, "--execute")
            assert (ran.exit_code, "and read back" in ran.stderr) == (0, True), ran.output
        whole = await shown(servers, group.name)
        assert (whole["type"], whole["remaining"]) == ("consumer", 2)


async def test_a_static_member_is_one_until_its_session_is_over(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """Its partitions are kept for it, so its group is not changed."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group = f"{topic}-group"
    settings = {"bootstrap.servers": servers, "group.id": group, "group.protocol": "consumer"}
    consumer = Consumer({**settings, "group.instance.id": "pod-1", "client.id": "static"})
    consumer.subscribe([topic])
    async with asyncio.timeout(60):
        while not consumer.assignment():
            await asyncio.to_thread(consumer.poll, 0.2)
    await asyncio.to_thread(consumer.close)
    (member,) = (await shown(servers, group))["members"]
    assert (member["instance_id"], member["epoch"], member["target"]) == ("pod-1", -2, [f"{topic}:0"])
    ran = await command(servers, "groups", "show", group)
    assert "static pod-1" in ran.stdout


@pytest.mark.classic_protocol("it has members of both")
async def test_members_of_both_protocols_share_a_group(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """One that joins with the new protocol converts the group, while a classic member runs; and it is converted back
    when the last one of the new protocol leaves."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(4)
    ran: set[int] = set()

    async def handle(record: Record) -> None:
        ran.add(int(record.value or b"-1"))

    async with group_of(local_kafka, topic) as group:
        classic = ParallelConsumer(
            topic, bootstrap_servers=servers, group_id=group.name, heartbeat_interval=0.2, rebalance_timeout=30
        )
        async with classic:
            running = asyncio.create_task(classic.run(handle))
            await until(lambda: len(classic.stats().partitions) == 4)
            assert (await shown(servers, group.name))["type"] == "classic"

            newer = GroupMember(group)
            await newer.heartbeat(**group.joining)
            newer.owned = await newer.until(lambda found: len(found) == 2)
            await newer.heartbeat(topic_partitions=group.of(*sorted(newer.owned)))
            await until(lambda: len(classic.stats().partitions) == 2)
            whole = await shown(servers, group.name)
            assert whole["type"] == "consumer"
            assert {one["protocol"] for one in whole["members"]} == {"classic", "consumer"}

            await group.heartbeat(newer.member_id, LEAVE)
            await until(lambda: len(classic.stats().partitions) == 4)
            fill(servers, topic, [Message(None, b"%d" % n, partition=n % 4) for n in range(40)])
            await until(lambda: len(ran) == 40)
            whole = await shown(servers, group.name)
            assert (whole["type"], len(whole["members"])) == ("classic", 1)
            classic.stop()
            await running
