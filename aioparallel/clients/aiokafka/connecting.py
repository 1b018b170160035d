"""Finding a broker that answers, and closing whatever there is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Iterable, Mapping
from typing import Final, cast

import aiokafka.errors as kafka
from aiokafka.conn import collect_hosts
from aiokafka.protocol.metadata import MetadataRequest

from aioparallel.clients.aiokafka.connector import stop_connecting
from aioparallel.clients.aiokafka.eager_tasks import refuse_eager_tasks
from aioparallel.clients.aiokafka.internals import Connections, Consumer
from aioparallel.clients.aiokafka.log_noise import calm
from aioparallel.clients.aiokafka.secure_connection import open_connection
from aioparallel.clients.aiokafka.trust import explain_connection_error, look_at_port
from aioparallel.errors import AuthenticationFailed

__all__ = ["close", "cut_off", "find_broker"]

logger = logging.getLogger(__name__)

_GRACE: Final = 0.7
"""Part of the time for closing that goes to a clean end; the rest is for cutting off what is left."""

_OTHERS: Final = 2.0
"""Seconds that the other servers get when one of them cannot be trusted, or does not trust us."""
_PAUSE: Final = 5.0
"""Seconds until it is worth telling anew that no broker answers: a refused connection is tried ten times a second."""


async def find_broker(
    bootstrap_servers: str, options: Mapping[str, object], timeout: float, retry_backoff: float
) -> str:
    """``host:port`` of the first of the bootstrap servers that takes a connection, TLS and SASL included.

    aiokafka asks one after the other, with up to 40 s for each, and does not say why they failed; so all are asked
    at once here, again and again until the time is up: a broker that starts beside us is worth waiting for. A wrong
    password, or a certificate that nobody trusts, is not.

    Raises TimeoutError with the last reason after ``timeout`` seconds; AuthenticationFailed, and ClientError for an
    event loop that is none for aiokafka, at once.
    """
    refuse_eager_tasks()
    calm()  # before the first login: what logs in is not for the log
    turned_away: set[str] = set()
    loop = asyncio.get_running_loop()
    ends = loop.time() + timeout
    reason = "no answer"
    told = float("-inf")
    while (left := ends - loop.time()) > 0:
        knocks = {
            asyncio.create_task(_knock(host, port, options, left)): f"{host}:{port}"
            for host, port, _ in collect_hosts(bootstrap_servers)
        }
        try:
            server, reason = await _first_open(knocks, options, turned_away, ends, reason)
            if server is not None:
                return server
        finally:
            await _cancelled(knocks)
        is_repetition = loop.time() - told < _PAUSE
        told = told if is_repetition else loop.time()
        logger.log(
            logging.DEBUG if is_repetition else logging.INFO,
            "No Kafka broker answers yet at %s (%s); trying on",
            bootstrap_servers,
            reason,
            extra={"action": "broker_unreachable", "bootstrap_servers": bootstrap_servers},
        )
        await asyncio.sleep(min(max(retry_backoff, 0.1), max(0.0, ends - loop.time())))
    raise TimeoutError(reason)


async def _first_open(
    knocks: Mapping[asyncio.Task[tuple[str, Exception | None]], str],
    options: Mapping[str, object],
    turned_away: set[str],
    ends: float,
    reason: str,
) -> tuple[str | None, str]:
    """The first server that takes us; None when none did, with the reason. Raises AuthenticationFailed: one is certain
    that waiting does not mend it, and no other has taken us within two seconds more."""
    loop = asyncio.get_running_loop()
    distrusted: tuple[AuthenticationFailed, Exception] | None = None
    pending = set(knocks)
    while pending:
        left = None if distrusted is None else max(0.0, ends - loop.time())
        done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            break
        for server, failure in [task.result() for task in done]:
            if failure is None:
                return server, reason
            found = await _certain(failure, server, options, turned_away, ends)
            if found is not None and distrusted is None:
                distrusted, ends = (found, failure), min(ends, loop.time() + _OTHERS)
            if not isinstance(failure, TimeoutError) or reason == "no answer":
                # The last try has little time left: that it got no answer says less than what was said before.
                reason = f"{server}: {_reason(failure)}"
    if distrusted is not None:
        raise distrusted[0] from distrusted[1]
    return None, reason


class _TurnedAway(kafka.KafkaConnectionError):  # type: ignore[misc]
    """The broker has said hello, and closed the connection at the first question."""

    def __init__(self) -> None:
        super().__init__("it closes connections that ask for anything")


async def _knock(host: str, port: int, options: Mapping[str, object], timeout: float) -> tuple[str, Exception | None]:
    """Connect, ask something and close again; what went wrong is returned, not raised.

    Who the brokers are, is asked, since a listener that wants a login says hello to everybody.
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


async def _certain(
    failure: Exception, server: str, options: Mapping[str, object], turned_away: set[str], ends: float
) -> AuthenticationFailed | None:
    """What waiting does not mend, if this is it. ``turned_away``: servers that were seen to do that before."""
    if (found := explain_connection_error(failure, server, options)) is not None:
        return found
    if isinstance(failure, _TurnedAway):
        # Once it may be a broker on its way out.
        if server in turned_away and "SASL" not in str(options.get("security_protocol")):
            return AuthenticationFailed(
                server,
                "it wants a login, and this client has none",
                'give security=Security("SASL_SSL", mechanism=...), or "SASL_PLAINTEXT" where it speaks no TLS',
            )
        turned_away.add(server)
    elif isinstance(failure, kafka.KafkaConnectionError | ConnectionResetError | ssl.SSLError):
        ((host, port, _),) = collect_hosts(server)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(ends):
                return await look_at_port(host, port, server, options)
    return None


async def _cancelled(tasks: Iterable[asyncio.Task[object]]) -> None:
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


def _reason(failure: Exception) -> str:
    return "no answer" if isinstance(failure, TimeoutError) and not str(failure) else str(failure) or repr(failure)


async def close(consumer: Consumer, timeout: float) -> None:
    """Leave the group and close all connections, within ``timeout`` seconds; never raises but when cancelled.

    aiokafka's own ``stop`` waits for whatever is going on (a join, a broker that does not answer), and can end with a
    CancelledError that nobody sent. So it runs as a task; what it has not closed in time is cut off.
    """
    stopping = asyncio.create_task(consumer.stop())
    cut_off: list[asyncio.Future[object]] = []
    try:
        await asyncio.wait([stopping], timeout=timeout * _GRACE)
    finally:
        # Here also when our caller is cancelled: then nothing may be awaited, but nothing stays open either.
        cut_off = _cut_off(consumer, stopping)
    if cut_off:
        logger.debug("Cutting off what aiokafka has not closed", extra={"action": "cut_off", "count": len(cut_off)})
        await asyncio.wait(cut_off, timeout=timeout * (1 - _GRACE))


def _cut_off(consumer: Consumer, stopping: asyncio.Task[None]) -> list[asyncio.Future[object]]:
    """Cancel each of the consumer's tasks and close each connection that is left; returns what then ends."""
    tasks: list[asyncio.Task[object] | None] = [cast("asyncio.Task[object]", stopping)]
    if (coordinator := consumer._coordinator) is not None:
        tasks += [coordinator._coordination_task, coordinator._heartbeat_task, coordinator._commit_refresh_task]
    if (fetcher := consumer._fetcher) is not None:
        tasks += [fetcher._fetch_task, *fetcher._pending_tasks]
    return cut_off(consumer._client, tasks)


def cut_off(connections: Connections, tasks: Iterable[asyncio.Task[object] | None]) -> list[asyncio.Future[object]]:
    """Cancel these tasks and the one for the metadata, close what connections are left; returns what then ends."""
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
    """Take note of a task's error, so that asyncio does not report it as never retrieved."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.debug("A task of aiokafka ended with an error while closing: %r", error, extra={"action": "close"})
