"""The Kafka client and producer of a consumer that the user gave none."""

from __future__ import annotations

from typing import cast

from aioparallel.clients.aiokafka import AiokafkaClient, AiokafkaProducer, AiokafkaTransactionalProducer
from aioparallel.config.options import Options
from aioparallel.config.policies import Transactions
from aioparallel.delivery.producer import Producer
from aioparallel.group.client import Client
from aioparallel.persistence.transactions import TransactionalProducer, is_transactional
from aioparallel.records.errors import ConfigurationError

__all__ = ["checked_producer", "client_of", "plain_producer", "producer_of"]


def client_of(servers: str, options: Options, group_id: str) -> Client:
    """Make a client that is a member of this group."""
    return AiokafkaClient(
        servers,
        group_id,
        session_timeout=options.session,
        heartbeat_interval=options.heartbeat,
        rebalance_timeout=options.rebalance_timeout,
        group_protocol=options.protocol,
        group_remote_assignor=options.group_remote_assignor,
        client_options=options.connecting_options,
    )


def producer_of(servers: str, options: Options, group_id: str) -> Producer:
    """Make the producer that the options need. It writes in transactions with ``commits=Transactions(...)``."""
    producing, connecting = options.producing, options.connecting_options
    if isinstance(options.commits, Transactions):
        return AiokafkaTransactionalProducer(
            servers,
            group_id,
            delivery_timeout=producing.delivery_timeout,
            consumer_options=connecting,
            producer_options=producing.client_options,
        )
    return AiokafkaProducer(
        servers,
        delivery_timeout=producing.delivery_timeout,
        consumer_options=connecting,
        producer_options=producing.client_options,
    )


def checked_producer(producer: Producer | None, options: Options) -> Producer | None:
    """Return the producer that the user gave. Raises ConfigurationError if it does not fit ``commits``."""
    if not isinstance(options.commits, Transactions) and is_transactional(producer):
        raise ConfigurationError(
            "producer", producer, "writes in transactions alone: it needs commits=Transactions(...) beside it"
        )
    return producer


def plain_producer(producer: Producer | None, options: Options) -> Producer | None:
    """Return a producer that writes outside of transactions."""
    return cast("TransactionalProducer", producer).plain() if isinstance(options.commits, Transactions) else producer
