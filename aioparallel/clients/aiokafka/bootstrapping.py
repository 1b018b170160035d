"""The configured addresses of one client, dialled anew when nobody else answers, and the cluster that stands behind
them.

Kafka's own clients do it since 4.0 (KIP-899, KIP-1102): a cluster may come back with all its brokers at other
addresses, which the last metadata does not know. Names are resolved at each attempt. What Kafka's clients do not
look at: that it still is the same cluster. Positions, offset maps, transactions and outputs mean another log there, so
a client that meets another cluster stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, cast

from aiokafka.conn import collect_hosts

from aioparallel.clients.aiokafka.connector import cut
from aioparallel.clients.aiokafka.first_answer import given_up
from aioparallel.clients.aiokafka.internals import Connection, MetadataAnswer
from aioparallel.clients.aiokafka.metadata_messages import cluster_id_of, error_of
from aioparallel.clients.aiokafka.secure_connection import LoggedIn, open_connection
from aioparallel.codes import ErrorCode
from aioparallel.errors import ClusterChanged

__all__ = ["Bootstrap"]

ROUND: Final = 1.0
"""Seconds between two rounds, from begin to begin."""
_CONNECT: Final = 8.0
"""Seconds for a connection, TLS and login included: then the name is resolved anew, and dialled again."""
_ANSWER: Final = 10.0
"""Seconds for the metadata after that."""
_OTHERS: Final = 2.0
"""Seconds that the other addresses get when one of them belongs to another cluster."""


class Bootstrap:
    """``servers``: ``host:port``, several separated by commas. ``options()``: of a single connection, as they are now.
    ``cluster_id``: of the cluster that it must be; None: the first that is heard of."""

    def __init__(
        self, servers: str, options: Callable[[], Mapping[str, object]], cluster_id: str | None = None
    ) -> None:
        self.servers = servers
        self.cluster_id = cluster_id
        self.other_cluster: ClusterChanged | None = None
        """That the last round has found another cluster, and nothing of ours."""
        self.reason = "no answer"
        """Why the last round has failed."""
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._next_round = self._loop.time()

    @property
    def is_resting(self) -> bool:
        """Whether the last round began less than a second ago."""
        return self._loop.time() < self._next_round

    def is_ours(self, cluster_id: str | None) -> bool:
        """Whether this is the id of the client's cluster; the first that is heard of is it. One that is not told could
        be any."""
        if cluster_id is None:
            return True
        if self.cluster_id is None:
            self.cluster_id = cluster_id
        return cluster_id == self.cluster_id

    async def ask(self, request: object) -> MetadataAnswer | None:
        """One round: all addresses at once; the first answer that has brokers. None where there is none, for
        :attr:`reason`, or where there is another cluster: :attr:`other_cluster`. Raises nothing but CancelledError."""
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
            await given_up(pending)
        self.other_cluster = None if other is None else ClusterChanged(self.servers, str(self.cluster_id), other)
        self.reason = "; ".join(sorted(set(reasons))) or "no answer"
        return None

    async def _ask(self, host: str, port: int, request: object) -> MetadataAnswer | str:
        """Connect, ask, and close again; what went wrong, for people, in the place of an answer."""
        server = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        connection: LoggedIn | None = None
        try:
            async with asyncio.timeout(_CONNECT):
                connection = await open_connection(host, port, self._options())
            async with asyncio.timeout(_ANSWER):
                answer = cast("MetadataAnswer", await connection.send(request))
        except Exception as error:  # whatever it is, another address may answer
            return f"{server}: {str(error) or ('no answer' if isinstance(error, TimeoutError) else repr(error))}"
        finally:
            if connection is not None:
                cut(cast("Connection", connection))
        if error_of(answer) == ErrorCode.REBOOTSTRAP_REQUIRED:
            return f"{server}: it wants to be asked nothing (REBOOTSTRAP_REQUIRED)"
        return answer if answer.brokers else f"{server}: it knows no brokers yet"
