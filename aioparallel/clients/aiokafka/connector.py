"""Opens the connections of one client, in place of aiokafka's ``_get_conn``.

aiokafka logs why a connection failed, but its caller only learns that the node is not ready. This module

* keeps the reason for the caller;
* retries a refused login only once a second, because directories lock users out for frequent failures;
* replaces a connection before its login expires and the broker closes it, or logs in again on it if the broker has a
  session that would end with the connection;
* uses a connection only after the broker has confirmed that it belongs to this client's cluster, because addresses are
  reused.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Coroutine
from typing import Final, cast

import aiokafka.errors as kafka
from aiokafka.client import ConnectionGroup
from aiokafka.conn import CloseReason
from aiokafka.errors import StaleMetadata

from aioparallel.clients.aiokafka.internals import BrokerNode, Connection, Connections
from aioparallel.clients.aiokafka.metadata_messages import Metadata, cluster_id_of
from aioparallel.clients.aiokafka.secure_connection import PASSWORD, LoggedIn, open_connection
from aioparallel.clients.aiokafka.trust import explain_connection_error

__all__ = ["Connector", "close_silent", "cut", "cut_all", "options_of", "stop_connecting"]

logger = logging.getLogger(__name__)

_LOGIN_PAUSE: Final = 1.0
"""Seconds before a refused login is retried."""
_LOG_INTERVAL: Final = 10.0
"""Seconds before the same reason for the same broker is logged as a warning again."""
_EARLY: Final = 0.1
"""Last part of a login's lifetime in which no request begins."""
_LATEST: Final = 60.0
"""Upper limit of that part in seconds."""
_SPARE: Final = 0.25
"""Seconds before its end in which a login is never used, because a request takes time."""
_LOOK: Final = 0.5
"""Seconds between checks whether a replaced connection still waits for answers."""
_LEAVE: Final = 120.0
"""Seconds before a replaced connection is closed in any case. Longer than a rebalance takes."""
_NO_REASON: Final = "it cannot be reached"
_OPTIONS: Final = (
    "client_id",
    "request_timeout_ms",
    "security_protocol",
    "ssl_context",
    "sasl_mechanism",
    "sasl_plain_username",
    PASSWORD,
    "sasl_kerberos_service_name",
    "sasl_kerberos_domain_name",
    "sasl_oauth_token_provider",
)
"""Options of a connection, which aiokafka's client has as private attributes."""


class Connector:
    """Opens the connections of one client and keeps its password up to date. ``is_ours(cluster_id)``: whether this may
    be the client's cluster. ``lasting``: groups of connections that must not be replaced while they are open."""

    def __init__(
        self, connections: Connections, is_ours: Callable[[str | None], bool], lasting: Collection[int] = ()
    ) -> None:
        self._connections = connections
        self._is_ours = is_ours
        self._lasting = lasting
        self._loop = asyncio.get_running_loop()
        self._reasons: dict[object, str] = {}
        self._paused_until: dict[object, float] = {}
        self._last_logged: dict[object, tuple[str, float]] = {}
        self._renewals: dict[tuple[object, int], asyncio.Task[object]] = {}
        self._reached: set[object] = set()
        self._is_closed = False
        self._why_closed = ""
        self._close = connections.close
        connections.close = self.close  # type: ignore[method-assign]

    def reason(self, node: object) -> str:
        return self._why_closed or self._reasons.get(node, _NO_REASON)

    def ready(self, node: object, group: int) -> Connection | None:
        """The open connection, if a request may begin on it."""
        connection = self._connections._conns.get((node, group))
        if connection is None or not connection.connected():
            return None
        return None if self._is_ending(cast("LoggedIn", connection)) else connection

    def old(self, node: object, group: int) -> Connection | None:
        """A connection that is due for replacement, but whose login is still valid. Used until a replacement is
        open."""
        connection = cast("LoggedIn | None", self._connections._conns.get((node, group)))
        if connection is None or connection.ends is None or not connection.connected():
            return None
        return connection if self._loop.time() < connection.ends - _SPARE else None

    def lasting(self, node: object, group: int) -> LoggedIn | None:
        """An open connection that must not be replaced, and has no unanswered requests."""
        connection = cast("LoggedIn | None", self._connections._conns.get((node, group)))
        if group not in self._lasting or connection is None or not connection.connected() or connection.has_requests:
            return None
        return connection

    def renew(self, node: object, group: int, connect: Callable[[object, int], Coroutine[None, None, object]]) -> None:
        """Open a replacement for :meth:`old`, which serves meanwhile: obtaining a token may take ten seconds."""
        if (node, group) in self._renewals or self._paused_until.get(node, 0.0) > self._loop.time():
            return
        task = self._renewals[node, group] = asyncio.create_task(connect(node, group), name="aioparallel-login")
        task.add_done_callback(lambda task: self._renewed(node, group, task))

    def _renewed(self, node: object, group: int, task: asyncio.Task[object]) -> None:
        del self._renewals[node, group]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("A login was not renewed: %r", error, exc_info=error, extra={"action": "not_renewed"})

    async def connect(self, node: object, group: int = ConnectionGroup.DEFAULT) -> Connection | None:
        """The open connection or a new one; None if that fails, see :meth:`reason`. Must not run twice at the same time
        for one node and group."""
        if (found := self.ready(node, group)) is not None or self._why_closed:
            return found
        if self._paused_until.get(node, 0.0) > self._loop.time():
            return self.old(node, group)
        if (lasting := self.lasting(node, group)) is not None:
            return await self._logged_in_again(node, group, lasting)
        connections = self._connections
        try:
            broker = connections.cluster.broker_metadata(node)
            if broker is None:
                raise StaleMetadata(f"broker {node} is not in the metadata")
            made = await open_connection(
                broker.host, broker.port, options_of(connections), connections._on_connection_closed
            )
            try:
                await self._check(made, node, broker)
            except BaseException:
                cut(made)
                raise
        except (OSError, TimeoutError, kafka.KafkaError) as error:
            self._failed(node, error)
            return self.old(node, group)
        self._reached.add(node)
        self._reasons.pop(node, None)
        self._paused_until.pop(node, None)
        if self._last_logged.pop(node, None) is not None:
            logger.info("Broker %s is reached again", node, extra={"action": "connected_again", "node": node})
            connections.force_metadata_update()  # the metadata may be outdated
        if self._is_closed:
            made.close()  # the client was closed meanwhile
            return None
        before = connections._conns.get((node, group))
        connections._conns[node, group] = made
        if before is not None and before.connected():
            # Keep it in _conns, where closing the client or cutting the node finds it.
            connections._conns[node, before] = before
            self._leave(node, cast("LoggedIn", before), self._loop.time() + _LEAVE)
        return made

    async def _logged_in_again(self, node: object, group: int, connection: LoggedIn) -> Connection | None:
        """The same connection with a new login. Without secrets for one, the old login serves to its end."""
        try:
            await connection.obtain_secrets(options_of(self._connections))
        except (OSError, kafka.KafkaError) as error:
            self._failed(node, error)
            return self.old(node, group)
        try:
            await connection.log_in_again()
        except BaseException as error:
            cut(connection)
            if not isinstance(error, OSError | TimeoutError | kafka.KafkaError):
                raise
            self._failed(node, error)
            return None
        return connection

    async def _check(self, made: LoggedIn, node: object, broker: BrokerNode) -> None:
        """Raise an error if the connection leads to another cluster, or if the broker has moved meanwhile: another one
        may be at this address."""
        found = cluster_id_of(await made.send(Metadata([])))
        if not self._is_ours(found):
            raise ConnectionError(f"it belongs to another cluster now ({found})")
        now = self._connections.cluster.broker_metadata(node)
        if now is None or (now.host, now.port) != (broker.host, broker.port):
            raise StaleMetadata(f"broker {node} is not at {broker.host}:{broker.port} any more")

    async def close(self) -> None:
        """``AIOKafkaClient.close``; no connection is opened after it."""
        self.stop()
        await self._close()

    def stop(self, why: str = "") -> None:
        """Open no more connections. ``why``: the reason that :meth:`reason` then gives."""
        self._is_closed = True
        self._why_closed = why
        for task in self._renewals.values():
            task.cancel()

    def _is_ending(self, connection: LoggedIn) -> bool:
        if connection.ends is None:
            return False
        lifetime = connection.ends - connection.since
        return self._loop.time() > connection.ends - min(lifetime * _EARLY, _LATEST)

    def _leave(self, node: object, connection: LoggedIn, until: float) -> None:
        """Close the connection once it has no unanswered requests."""
        if connection.connected() and connection.has_requests and self._loop.time() < until:
            self._loop.call_later(_LOOK, self._leave, node, connection, until)
            return
        self._connections._conns.pop((node, connection), None)
        connection.close()

    def _failed(self, node: object, error: Exception) -> None:
        server = self._server(node)
        refused = explain_connection_error(error, server, options_of(self._connections))
        reason = self._reason_of(node, server, error) if refused is None else str(refused)
        self._reasons[node] = reason
        now = self._loop.time()
        if refused is not None:
            self._paused_until[node] = now + _LOGIN_PAUSE
        logged, at = self._last_logged.get(node, ("", 0.0))
        is_new = logged != reason or now - at > _LOG_INTERVAL
        if is_new:
            self._last_logged[node] = reason, now
        logger.log(
            logging.WARNING if is_new else logging.DEBUG,
            "Broker %s: %s; retrying",
            node,
            reason,
            extra={"action": "no_connection" if refused is None else "login_refused", "node": node},
        )
        # The broker may be gone, with other leaders for its partitions.
        self._connections.force_metadata_update()

    def _reason_of(self, node: object, server: str, error: Exception) -> str:
        reason = str(error) or type(error).__name__
        if node in self._reached or not isinstance(error, OSError):
            return reason
        trouble = "resolved" if isinstance(error, socket.gaierror) else "reached"
        return f"the cluster names {server} as its address (advertised.listeners), which cannot be {trouble}: {reason}"

    def _server(self, node: object) -> str:
        broker = self._connections.cluster.broker_metadata(node)
        return str(node) if broker is None else f"{broker.host}:{broker.port}"


def cut(connection: Connection) -> None:
    """Close a connection at once; requests on it fail."""
    writer = connection._writer
    connection.close()
    if writer is not None:
        writer.transport.abort()


def cut_all(connections: Connections, node: object = None) -> None:
    """:func:`cut` the connections to this node, or all, including replaced ones that still wait for answers."""
    for (of, _), connection in list(connections._conns.items()):
        if node in {None, of}:
            cut(connection)


def close_silent(connections: Connections, node: object, group: int) -> kafka.KafkaError:
    """Close a connection over which a broker does not answer. Returns the error of the request."""
    if (connection := connections._conns.get((node, group))) is not None:
        connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
    return kafka.RequestTimedOutError(f"broker {node} does not answer")


def stop_connecting(connections: Connections) -> None:
    """Open no more connections for this client, even if it cannot be closed."""
    connector = getattr(connections.close, "__self__", None)
    if isinstance(connector, Connector):
        connector.stop()


def options_of(connections: Connections) -> dict[str, object]:
    """The options of a single connection of this client."""
    options = {name: getattr(connections, f"_{name}") for name in _OPTIONS}
    return {**options, "max_idle_ms": connections._connections_max_idle_ms}
