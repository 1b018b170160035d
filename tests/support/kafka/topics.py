"""Topics that go, and come back under their names."""

from __future__ import annotations

import asyncio

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.waiting import until

__all__ = ["make_anew"]


async def make_anew(servers: str, topic: str, partitions: int = 1) -> None:
    """Delete it, and create another one of the same name."""
    admin = AdminClient({"bootstrap.servers": servers})

    def create() -> bool:
        try:
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
        except KafkaException:
            return False  # the one before is not gone yet
        return True

    await asyncio.to_thread(admin.delete_topics([topic])[topic].result, 30)
    await until(lambda: asyncio.to_thread(create), what=f"{topic} made anew")
