"""Finds a broker that answers, and closes clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Final, cast

import aiokafka.errors as kafka
from aiokafka.conn import collect_hosts
from aiokafka.protocol.metadata import MetadataRequest

from aioparallel.clients.aiokafka.aiokafka_errors import deadline
from aioparallel.clients.aiokafka.connector import options_of, stop_connecting
from aioparallel.clients.aiokafka.eager_tasks import refuse_eager_tasks
from aioparallel.clients.aiokafka.first_answer import cancel_all
from aioparallel.clients.aiokafka.internals import Connections, Consumer
from aioparallel.clients.aiokafka.log_noise import calm
from aioparallel.clients.aiokafka.metadata_updates import no_metadata_because
from aioparallel.clients.aiokafka.secure_connection import open_connection
from aioparallel.clients.aiokafka.trust import explain_connection_error, look_at_port
from aioparallel.records.errors import AuthenticationFailed, BrokerUnreachable

__all__ = ["close", "close_or_cut_off", "cut_off", "find_broker", "start_client"]

logger = logging.getLogger(__name__)

_GRACE: Final = 0.7
"""Share of the closing time for a clean end; the rest is for cutting off what is left."""

_OTHERS: Final = 2.0
"""Seconds to wait for the other servers after one has failed permanently."""
_FIRST_LOG: Final = 3.0
_LOG_INTERVAL: Final = 10.0
# Seconds until the first WARNING, and between two. A refused connection is retried ten times a second.

_Attempt = asyncio.Task[tuple[str, Exception | None]]


async def start_client(
    connections: Connections,
    start: Callable[[], Awaitable[object]],
    close: Callable[[], Awaitable[object]],
    timeout: float,
    retry_backoff: float,
    *,
    closing: float = 0.0,
) -> None:
    """Call ``start()`` with the first bootstrap server of these connections that accepts one. The cluster's metadata
    then names the other brokers. If that fails, call ``close()``, which may take ``closing`` seconds of the timeout.

    Raises BrokerUnreachable after ``timeout`` seconds, and AuthenticationFailed and ClientError as :func:`find_broker`.
    """
    servers, loop = connections._bootstrap_servers, asyncio.get_running_loop()
    ends = loop.time() + timeout - closing
    try:
        server = await find_broker(servers, options_of(connections), timeout - closing, retry_backoff)
        connections._bootstrap_servers = server
        async with deadline(max(0.0, ends - loop.time()), f"connecting to {server}"):
            await start()
    except TimeoutError as error:
        await close()
        reason = no_metadata_because(connections) or str(error) or "no answer"
        raise BrokerUnreachable(servers, timeout, reason) from None
    except BaseException:
        await close()
        raise


async def find_broker(
    bootstrap_servers: str, options: Mapping[str, object], timeout: float, retry_backoff: float
) -> str:
    """``host:port`` of the first bootstrap server that accepts a connection, including TLS and SASL.

    aiokafka tries one server after the other, for up to 40 s each, and does not say why they failed. Here all are tried
    at once, each again and again until the timeout: a broker may still be starting. A wrong password or an untrusted
    certificate is not retried.

    Raises TimeoutError with the last reason after ``timeout`` seconds. Raises AuthenticationFailed at once, and
    ClientError for an event loop that aiokafka cannot run in.
    """
    refuse_eager_tasks()
    calm()  # before the first login, whose log lines must be suppressed
    turned_away: set[str] = set()
    loop = asyncio.get_running_loop()
    ends = loop.time() + timeout
    reason = "no answer"
    logs_at = loop.time() + _FIRST_LOG
    attempts: dict[tuple[str, int], _Attempt] = {}
    try:
        while (left := ends - loop.time()) > 0:
            for host, port, _ in collect_hosts(bootstrap_servers):
                if (host, port) not in attempts:
                    attempts[host, port] = asyncio.create_task(_try_server(host, port, options, left))
            server, reason = await _first_open(attempts, options, turned_away, ends, reason)
            if server is not None:
                return server
            is_due = loop.time() >= logs_at
            logs_at = loop.time() + _LOG_INTERVAL if is_due else logs_at
            logger.log(
                logging.WARNING if is_due else logging.DEBUG,
                "No Kafka broker answers yet at %s (%s). Trying again for %.0f s",
                bootstrap_servers,
                reason,
                max(0.0, ends - loop.time()),
                extra={"action": "broker_unreachable", "bootstrap_servers": bootstrap_servers},
            )
            await asyncio.sleep(min(max(retry_backoff, 0.1), max(0.0, ends - loop.time())))
    finally:
        await cancel_all(attempts.values())
    raise TimeoutError(reason)


async def _first_open(
    attempts: dict[tuple[str, int], _Attempt],
    options: Mapping[str, object],
    turned_away: set[str],
    ends: float,
    reason: str,
) -> tuple[str | None, str]:
    """The first server that accepts a connection; None and the reason once some have failed. These are removed from
    ``attempts``: they are tried again while the others, which may hang, are still awaited.

    Raises AuthenticationFailed if one server failed permanently and no other accepted within two seconds."""
    loop = asyncio.get_running_loop()
    permanent: tuple[AuthenticationFailed, Exception] | None = None
    while attempts:
        left = None if permanent is None else max(0.0, ends - loop.time())
        done, _ = await asyncio.wait(attempts.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for address in [address for address, attempt in attempts.items() if attempt in done]:
            server, failure = attempts.pop(address).result()
            if failure is None:
                return server, reason
            found = await _permanent_failure(failure, server, options, turned_away, ends)
            if found is not None and permanent is None:
                permanent, ends = (found, failure), min(ends, loop.time() + _OTHERS)
            if not isinstance(failure, TimeoutError) or reason == "no answer":
                # The last attempt is short. Its timeout says less than an earlier reason.
                reason = f"{server}: {_reason(failure)}"
        if permanent is None or not done:
            break
    if permanent is not None:
        raise permanent[0] from permanent[1]
    return None, reason


class _TurnedAway(kafka.KafkaConnectionError):  # type: ignore[misc]
    """The broker answered ApiVersions, and closed the connection at the next request."""

    def __init__(self) -> None:
        super().__init__("it closes connections that ask for anything")


async def _try_server(
    host: str, port: int, options: Mapping[str, object], timeout: float
) -> tuple[str, Exception | None]:
    """Connect, send a request and close. Returns the failure instead of raising it.

    The request is for metadata, because a listener that requires a login answers ApiVersions to everybody.
    """
    server = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        async with asyncio.timeout(timeout):
            connection = await open_connection(host, port, options)
            try:
                await connection.send(MetadataRequest([]))
            except kafka.KafkaConnectionError:
                raise _TurnedAway from None
            finally:
                closed = connection.close()
            if closed is not None:
                await closed
    except (OSError, TimeoutError, kafka.KafkaError) as error:
        return server, error
    return server, None


async def _permanent_failure(
    failure: Exception, server: str, options: Mapping[str, object], turned_away: set[str], ends: float
) -> AuthenticationFailed | None:
    """The explanation of a failure that will not pass, else None. ``turned_away``: servers that have closed a
    connection before."""
    if (found := explain_connection_error(failure, server, options)) is not None:
        return found
    if isinstance(failure, _TurnedAway):
        # A single time may be a broker that is shutting down.
        if server in turned_away and "SASL" not in str(options.get("security_protocol")):
            return AuthenticationFailed(
                server,
                "it requires a login, and this client has none",
                'give security=Security("SASL_SSL", mechanism=...), or "SASL_PLAINTEXT" if it does not use TLS',
            )
        turned_away.add(server)
    elif isinstance(failure, kafka.KafkaConnectionError | ConnectionResetError | ssl.SSLError):
        ((host, port, _),) = collect_hosts(server)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(ends):
                return await look_at_port(host, port, server, options)
    return None


def _reason(failure: Exception) -> str:
    return "no answer" if isinstance(failure, TimeoutError) and not str(failure) else str(failure) or repr(failure)


async def close(consumer: Consumer, timeout: float) -> None:
    """Leave the group and close all connections, within ``timeout`` seconds. Raises only CancelledError."""

    def tasks() -> Iterable[asyncio.Task[object] | None]:
        for name in ("_coordination_task", "_heartbeat_task", "_commit_refresh_task", "_reset_committed_task"):
            yield getattr(consumer._coordinator, name, None)
        yield getattr(consumer._fetcher, "_fetch_task", None)
        yield from getattr(consumer._fetcher, "_pending_tasks", ())

    await close_or_cut_off(consumer._client, consumer.stop(), timeout, tasks)


async def close_or_cut_off(
    connections: Connections,
    closing: Coroutine[None, None, None],
    timeout: float,
    tasks: Callable[[], Iterable[asyncio.Task[object] | None]] = tuple,
) -> None:
    """Run aiokafka's ``closing``, then cut off what it has not closed in time: ``tasks()`` and connections.

    aiokafka's ``stop`` waits for what is in progress (a join, a broker that does not answer), and may raise a
    CancelledError of its own. So it runs as a task.
    """
    stopping = asyncio.create_task(closing)
    left: list[asyncio.Future[object]] = []
    try:
        await asyncio.wait([stopping], timeout=timeout * _GRACE)
    finally:
        # Also when the caller is cancelled: nothing may be awaited then, but nothing may stay open.
        left = cut_off(connections, [cast("asyncio.Task[object]", stopping), *tasks()])
    if left:
        logger.debug("Cutting off what aiokafka has not closed", extra={"action": "cut_off", "count": len(left)})
        await asyncio.wait(left, timeout=timeout * (1 - _GRACE))


def cut_off(connections: Connections, tasks: Iterable[asyncio.Task[object] | None]) -> list[asyncio.Future[object]]:
    """Cancel these tasks and the metadata task, and close remaining connections. Returns what has yet to end."""
    left: list[asyncio.Future[object]] = []
    for task in (*tasks, connections._sync_task):
        if task is None:
            continue
        task.add_done_callback(_retrieve)
        if not task.done():
            task.cancel()
            left.append(task)
    stop_connecting(connections)
    for connection in list(connections._conns.values()):
        if (writer := connection._writer) is not None:
            closed = connection.close()
            writer.transport.abort()
            if closed is not None and not closed.done():
                left.append(cast("asyncio.Future[object]", closed))
    return left


def _retrieve(task: asyncio.Future[object]) -> None:
    """Retrieve a task's exception, so that asyncio does not report it as never retrieved."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.debug("A task of aiokafka ended with an error while closing: %r", error, extra={"action": "close"})
