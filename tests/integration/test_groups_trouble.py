"""``aioparallel groups`` and ``offsets`` where something is missing: rights, a broker; and with a group of KIP-848."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request

import pytest
from confluent_kafka import Consumer

from aioparallel.cli.groups.commands import GroupAccess, Serving
from aioparallel.cli.groups.serving import serve_groups
from aioparallel.clients.aiokafka.group_admin import GroupAdmin
from aioparallel.group.client import Committed
from aioparallel.offsets import encode_offset_map
from aioparallel.records.record import TopicPartition
from aioparallel.testing import LocalKafka
from aioparallel.testing.brokers.ports import free_ports
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.conftest import PASSWORD
from tests.support.command_line import Ran, invoke
from tests.support.kafka.filling import Message, fill

pytestmark = pytest.mark.real


async def command(servers: str, *arguments: str, **environment: str) -> Ran:
    """Run ``aioparallel`` in a thread."""
    there = {"AIOPARALLEL_BOOTSTRAP_SERVERS": servers, **environment}
    return await asyncio.to_thread(invoke, *arguments, environment=there)


async def new_group(servers: str, topic: str, group: str) -> None:
    """100 records, of which the group has completed all but two."""
    fill(servers, topic, [Message(None, b"x") for _ in range(100)])
    async with GroupAdmin(servers) as admin:
        position = Committed(7, encode_offset_map(7, 99, [7, 50]))
        assert set((await admin.commit(group, {TopicPartition(topic, 0): position})).values()) == {0}


async def test_the_rights_of_the_page_are_enough(secured_kafka: LocalKafka) -> None:
    """DESCRIBE for the list, READ on the topic for the age, READ on both for a change. What is missing is named."""
    secured, plain = secured_kafka.secured, secured_kafka.bootstrap_servers
    topic, group = "clerk.groups", "clerk.groups.group"
    await secured_kafka.create_topic(topic)
    await new_group(plain, topic, group)
    login = {
        "AIOPARALLEL_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "AIOPARALLEL_MECHANISM": "PLAIN",
        "AIOPARALLEL_USERNAME": "clerk",
        "AIOPARALLEL_PASSWORD": PASSWORD,
    }
    servers = secured.bootstrap_servers("SASL_PLAINTEXT")

    async def run(*arguments: str) -> Ran:
        return await command(servers, *arguments, **login)

    assert group not in (await run("groups", "list")).stdout
    ran = await run("groups", "show", group)
    assert (ran.exit_code, "DESCRIBE on the group" in ran.stderr) == (1, True)
    for place in ({"topic": topic}, {"group": group}):
        await asyncio.to_thread(secured.allow, "clerk", "DESCRIBE", **place)
    (listed,) = [json.loads(line) for line in (await run("groups", "list", "--json")).stdout.splitlines()]
    assert (listed["group"], listed["remaining"]) == (group, 2)
    ran = await run("groups", "show", group, "--json")
    _, one = map(json.loads, ran.stdout.splitlines())
    assert (one["remaining"], one["remaining_is"], one["oldest_age"], one["map_limit"]) == (
        2,
        "upper bound",
        None,
        4_096,
    )
    assert "their ages are unknown" in ran.stderr
    ran = await run("offsets", "skip", group, f"{topic}:0:7", "--execute")
    assert (ran.exit_code, "AUTHORIZATION_FAILED" in ran.stderr) == (1, True)
    for place in ({"topic": topic}, {"group": group}):
        await asyncio.to_thread(secured.allow, "clerk", "READ", **place)
    _, one = map(json.loads, (await run("groups", "show", group, "--json")).stdout.splitlines())
    assert (one["remaining_is"], one["oldest_age"] >= 0) == ("exact", True)
    ran = await run("offsets", "skip", group, f"{topic}:0:7", "--execute")
    assert (ran.exit_code, "and read back" in ran.stderr) == (0, True)


@pytest.mark.slow
async def test_serve_outlives_a_broker_that_hangs(mortal_kafka: LocalKafka) -> None:
    """The status is 503 meanwhile, within the time that scrapers wait, and 200 again afterwards."""
    servers, topic, group = mortal_kafka.bootstrap_servers, "served", "served-group"
    await mortal_kafka.create_topic(topic)
    await new_group(servers, topic, group)
    (port,) = free_ports(1)

    def get() -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/groups/{group}", timeout=10) as response:
                assert json.loads(response.read())["remaining"] == 2
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    where = GroupAccess(bootstrap_servers=servers)
    serving = asyncio.create_task(serve_groups([group], Serving(port=port, keep=0), where))
    try:
        async with asyncio.timeout(60):
            while await asyncio.to_thread(get) != 200:
                await asyncio.sleep(0.1)
        mortal_kafka.pause()
        try:
            assert await asyncio.to_thread(get) == 503
        finally:
            mortal_kafka.resume()
        async with asyncio.timeout(60):
            while await asyncio.to_thread(get) != 200:
                await asyncio.sleep(0.1)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_a_group_of_the_newer_protocol(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Members and their partitions are shown, and it is refused while it has members (KIP-848)."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group = f"{topic}-group"
    await new_group(servers, topic, group)
    settings = {"bootstrap.servers": servers, "group.id": group, "group.protocol": "consumer", "client.id": "newer"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([topic])
    try:
        async with asyncio.timeout(60):
            while not consumer.assignment():
                await asyncio.to_thread(consumer.poll, 0.2)
        ran = await command(servers, "groups", "show", group, "--json")
        whole, one = map(json.loads, ran.stdout.splitlines())
        assert (whole["state"], whole["type"], one["remaining"]) == ("Stable", "consumer", 2)
        assert [member["partitions"] for member in whole["members"]] == [[f"{topic}:0"]]
        ran = await command(servers, "offsets", "skip", group, f"{topic}:0:7", "--execute")
        assert (ran.exit_code, "has 1 member: newer at 127.0.0.1" in ran.stderr) == (1, True)
        async with GroupAdmin(servers) as admin:
            found = await admin.commit(group, {TopicPartition(topic, 0): Committed(3, "")})
        assert list(found.values()) == [25]  # UNKNOWN_MEMBER_ID
    finally:
        await asyncio.to_thread(consumer.close)
    ran = await command(servers, "offsets", "skip", group, f"{topic}:0:7", "--execute")
    assert (ran.exit_code, "and read back" in ran.stderr) == (0, True)
