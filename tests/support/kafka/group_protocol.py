"""The suites of the classic group protocol with the new one: ``GROUP_PROTOCOL=consumer``, as in ``make test-groups``.

The variable counts in every process that imports the package ``tests``, so in children, too. Consumers that are given
no client of their own are then members of the new protocol, also those whose test gives a session timeout and a
heartbeat interval: their group is configured with these.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from aiokafka.errors import KafkaError

from aioparallel.clients import AiokafkaClient, defaults
from tests.support.kafka.asking import asking

__all__ = ["QUICK", "play_consumer_protocol"]

QUICK: Final[dict[str, str]] = {
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.session.timeout.ms": "1000",
}
"""Properties of a broker whose members of the new protocol send heartbeats often."""
_LONGEST_SESSION, _LONGEST_INTERVAL = 60.0, 15.0
"""Seconds that brokers allow."""
_TIMEOUT: Final = 5.0


class ConsumerClient(AiokafkaClient):
    """A member of the new protocol, in a group with the times of its options."""

    def __init__(self, bootstrap_servers: str, group_id: str, **options: Any) -> None:
        super().__init__(bootstrap_servers, group_id, **{**options, "group_protocol": "consumer"})
        times = {
            "session.timeout": min(options["session_timeout"], _LONGEST_SESSION),
            "heartbeat.interval": min(options["heartbeat_interval"], _LONGEST_INTERVAL),
        }
        self._group_configs = {f"consumer.{name}.ms": f"{seconds * 1000:.0f}" for name, seconds in times.items()}

    async def start(self, timeout: float) -> None:
        await super().start(timeout)
        # A broker may be dead, or ask for a login: its times count then.
        with suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(_TIMEOUT), asking(self._settings.bootstrap_servers) as asked:
                await asked.configure(self._settings.group_id, self._group_configs)


def play_consumer_protocol() -> None:
    """Let the consumers of this process be members of the new protocol."""
    vars(defaults)["AiokafkaClient"] = ConsumerClient
