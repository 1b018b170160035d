"""Reconnects a client through its configured addresses when no known broker answers, and checks the cluster's id.

Kafka's clients rebootstrap since 4.0 (KIP-899, KIP-1102): all brokers of a cluster may move to addresses that are not
in the last metadata. Names are resolved at each attempt. Unlike Kafka's clients, this one checks that the cluster is
still the same. In another cluster, positions, offset maps, transactions and outputs would refer to other logs, so the
client stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from aiokafka.conn import collect_hosts

from aioparallel.clients.aiokafka.connector import cut
from aioparallel.clients.aiokafka.first_answer import cancel_all
from aioparallel.clients.aiokafka.internals import MetadataAnswer
from aioparallel.clients.aiokafka.metadata_messages import cluster_id_of, error_of
from aioparallel.clients.aiokafka.secure_connection import LoggedIn, open_connection
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ClusterChanged

__all__ = ["Bootstrap"]

ROUND: Final = 1.0
"""Seconds from the start of one round to the start of the next."""
_CONNECT: Final = 8.0
"""Seconds for a connection, including TLS and login. After that the name is resolved again."""
_ANSWER: Final = 10.0
"""Seconds for the metadata answer."""
_OTHERS: Final = 2.0
"""Seconds to wait for the other addresses after one of them turned out to belong to another cluster."""


class Bootstrap:
    """``servers``: comma-separated ``host:port``. ``options()`` returns the current options of a connection.
    ``cluster_id``: the expected cluster; None accepts the first one found."""

    def __init__(
        self, servers: str, options: Callable[[], Mapping[str, object]], cluster_id: str | None = None
    ) -> None:
        self.servers = servers
        self.cluster_id = cluster_id
        self.other_cluster: ClusterChanged | None = None
        """Set if the last round found another cluster, and not this client's."""
        self.reason = "no answer"
        """Why the last round failed."""
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._next_round = self._loop.time()

    @property
    def is_resting(self) -> bool:
        """Whether the last round began less than :data:`ROUND` seconds ago."""
        return self._loop.time() < self._next_round

    def end_rest(self) -> None:
        """Allow the next round at once."""
        self._next_round = self._loop.time()

    def is_ours(self, cluster_id: str | None) -> bool:
        """Whether this is the id of the client's cluster. The first known id becomes that id; None always matches."""
        if cluster_id is None:
            return True
        if self.cluster_id is None:
            self.cluster_id = cluster_id
        return cluster_id == self.cluster_id

    async def ask(self, request: object) -> MetadataAnswer | None:
        """One round: query all addresses at once and return the first answer that has brokers.

        Returns None and sets :attr:`reason` if there is none. Sets :attr:`other_cluster` if another cluster answered.
        Raises only CancelledError."""
        self._next_round = self._loop.time() + ROUND
        pending = {
            asyncio.create_task(self._ask(host, port, request), name="aioparallel-bootstrap")
            for host, port, _ in collect_hosts(self.servers)
        }
        reasons: list[str] = []
        other: str | None = None
        ends: float | None = None
        try:
            while pending:
                left = None if ends is None else max(0.0, ends - self._loop.time())
                done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for answer in [task.result() for task in done]:
                    if isinstance(answer, str):
                        reasons.append(answer)
                    elif self.is_ours(found := cluster_id_of(answer)):
                        return answer
                    elif other is None:
                        other, ends = found, self._loop.time() + _OTHERS
        finally:
            await cancel_all(pending)
        self.other_cluster = None if other is None else ClusterChanged(self.servers, str(self.cluster_id), other)
        self.reason = "; ".join(sorted(set(reasons))) or "no answer"
        return None

    async def _ask(self, host: str, port: int, request: object) -> MetadataAnswer | str:
        """Connect, send the request and close. Returns an error text if no usable answer came."""
        server = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        connection: LoggedIn | None = None
        try:
            async with asyncio.timeout(_CONNECT):
                connection = await open_connection(host, port, self._options())
            async with asyncio.timeout(_ANSWER):
                answer: MetadataAnswer = await connection.send(request)
        except Exception as error:  # of any kind: another address may answer
            return f"{server}: {str(error) or ('no answer' if isinstance(error, TimeoutError) else repr(error))}"
        finally:
            if connection is not None:
                cut(connection)
        if error_of(answer) == ErrorCode.REBOOTSTRAP_REQUIRED:
            return f"{server}: it refuses requests (REBOOTSTRAP_REQUIRED)"
        return answer if answer.brokers else f"{server}: it knows no brokers yet"
