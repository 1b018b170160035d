"""A load balancer that drops idle connections in silence, in front of Apache Kafka."""

from __future__ import annotations

import asyncio
import logging
from typing import cast

import pytest
from aiokafka.structs import BrokerMetadata

from aioparallel import Outgoing
from aioparallel.clients.aiokafka import produce_requests
from aioparallel.clients.aiokafka.connector import cut_all
from aioparallel.clients.aiokafka.producer import AiokafkaProducer
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.network import Network, network_to

pytestmark = pytest.mark.real


async def through(network: Network, producer: AiokafkaProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer's brokers are behind the network from now on."""
    host, _, port = network.address.partition(":")
    brokers = cast("produce_requests.AiokafkaBrokers", producer._brokers)
    cluster = brokers._connected().cluster

    def behind(node: object) -> BrokerMetadata:
        return BrokerMetadata(cast("int", node), host, int(port), None)

    monkeypatch.setattr(cluster, "broker_metadata", behind)
    for broker in cluster.brokers():
        cut_all(brokers._connected(), broker.nodeId)


async def send(producer: AiokafkaProducer, topic: str) -> float:
    """Seconds until one output was acknowledged."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[object] = loop.create_future()
    began = loop.time()
    producer.send([Outgoing(topic, b"value")], ended.set_result)
    found = await ended
    assert isinstance(found, list), found
    return loop.time() - began


async def test_outputs_do_not_wait_for_a_connection_that_was_dropped(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They go over another one within seconds, not after the 30 s of a request; one that is well is kept."""
    monkeypatch.setattr(produce_requests, "_IDLE", 0.5)
    topic = await kafka_topic()
    port = int(local_kafka.bootstrap_servers.rpartition(":")[2])
    producer = AiokafkaProducer(
        local_kafka.bootstrap_servers, delivery_timeout=120, consumer_options={}, producer_options={}
    )
    async with asyncio.timeout(90), network_to(port) as network:
        try:
            await producer.start(30)
            await through(network, producer, monkeypatch)
            await send(producer, topic)
            connections = network.connections
            assert connections
            await asyncio.sleep(0.6)
            await send(producer, topic)
            assert network.connections == connections
            await asyncio.sleep(0.6)
            network.silence()
            with caplog.at_level(logging.INFO, "aioparallel"):
                assert await send(producer, topic) < 15
            assert "idle_connection_lost" in [getattr(one, "action", "") for one in caplog.records]
        finally:
            await producer.stop(1.0)


async def test_the_first_output_after_a_quiet_start(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection is there since the metadata was asked for, and nothing was sent over it yet."""
    monkeypatch.setattr(produce_requests, "_IDLE", 0.5)
    topic = await kafka_topic()
    port = int(local_kafka.bootstrap_servers.rpartition(":")[2])
    producer = AiokafkaProducer(
        local_kafka.bootstrap_servers, delivery_timeout=120, consumer_options={}, producer_options={}
    )
    async with asyncio.timeout(90), network_to(port) as network:
        try:
            await producer.start(30)
            await through(network, producer, monkeypatch)
            await cast("produce_requests.AiokafkaBrokers", producer._brokers).update([topic])
            assert network.connections
            await asyncio.sleep(0.6)
            network.silence()
            with caplog.at_level(logging.INFO, "aioparallel"):
                assert await send(producer, topic) < 15
            assert "idle_connection_lost" in [getattr(one, "action", "") for one in caplog.records]
        finally:
            await producer.stop(1.0)
