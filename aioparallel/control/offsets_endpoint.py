"""An extension that lets ``aioparallel offsets skip --via`` skip single offsets of a running consumer.

::

    GET  /offsets        {"group": "billing", "partitions": [{"topic": "orders", "partition": 3}]}
    POST /offsets/skip   {"topic": "orders", "partition": 3, "ranges": [[1234, 1234]], "execute": true}
                         {"offsets": [{"offset": 1234, "was": "parked", "is_skipped": true}]}

Each request needs the header ``Authorization: Bearer`` with the token. An answer with another status than 200 has
``{"error": "..."}``: 400 a wrong request, 401 no token or a wrong one, 409 the consumer has refused it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

from aioparallel.config.extension import ConsumerContext, Extension
from aioparallel.config.security.secret import Hidden
from aioparallel.config.unknown_options import refuses_others
from aioparallel.observe.http_server import JSON, Answer, HttpServer, Request, Route
from aioparallel.observe.metrics.serving import cannot_listen, checked_address
from aioparallel.records.errors import AioparallelError, ConfigurationError
from aioparallel.records.record import TopicPartition

__all__ = ["LONGEST_REQUEST", "MOST_OFFSETS", "OffsetsEndpoint"]

logger = logging.getLogger(__name__)

LONGEST_REQUEST: Final = 64 * 1024
"""Bytes of the body of one request."""
MOST_OFFSETS: Final = 100_000
"""Offsets in one request."""
_SHORTEST_TOKEN: Final = 16
_LOG_PAUSE: Final = 60.0
"""Seconds between two log lines about wrong tokens."""


@refuses_others
class OffsetsEndpoint(Extension):
    """Lets ``aioparallel offsets skip --via`` skip single offsets while the consumer runs.

    ::

        endpoint = OffsetsEndpoint(port=9180, token="a-secret-of-your-own")
        consumer = ParallelConsumer("orders", group_id="billing", extensions=[endpoint])

    ``port``: 0: any free port, which ``endpoint.port`` has once the consumer runs.
    ``token``: the secret that each request must have, at least 16 printable ASCII characters. It is never logged.
    ``host``: "127.0.0.1": only this machine. "0.0.0.0" or "::": all interfaces. There is no TLS: between machines, put
    a proxy with TLS before it.

    It listens while the consumer runs. Raises ConfigurationError, at the start also if the port is in use.
    """

    def __init__(self, port: int, token: str, *, host: str = "127.0.0.1") -> None:
        port, host = checked_address(port, host)
        self._token = _checked_token(token).encode()
        routes = {
            "/offsets": Route(self._guarded(self._partitions)),
            "/offsets/skip": Route(
                self._guarded(self._skip), methods=("POST",), longest_body=LONGEST_REQUEST, timeout=None
            ),
        }
        self._server = HttpServer(routes, port, host, "there are /offsets and /offsets/skip")
        self._stack = AsyncExitStack()
        self._consumer: ConsumerContext | None = None
        self._logged_at = -math.inf

    def __repr__(self) -> str:
        return f"OffsetsEndpoint(port={self.port}, host={self._server.host!r})"

    @property
    def port(self) -> int:
        """Its port."""
        return self._server.port

    def attach(self, consumer: ConsumerContext) -> None:
        """Keep the consumer."""
        self._consumer = consumer

    async def start(self) -> None:
        """Listen."""
        try:
            await self._stack.enter_async_context(self._server)
        except OSError as error:
            raise cannot_listen(self._server, error) from error
        logger.info(
            "Offsets can be skipped at %s", self._server.url, extra={"action": "offsets_served", "port": self.port}
        )

    async def stop(self) -> None:
        """Stop listening. Requests get two seconds to end."""
        await self._stack.aclose()

    # -- requests ---------------------------------------------------------------------------------------

    def _guarded(self, answer: Callable[[Request], Awaitable[Answer]]) -> Callable[[Request], Awaitable[Answer]]:
        async def guarded(request: Request) -> Answer:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            # In constant time: how long it takes says nothing about how much of the token is right.
            if not hmac.compare_digest(token.strip().encode(), self._token) or scheme.lower() != "bearer":
                self._log_refused()
                text = "the token is missing or wrong: Authorization: Bearer TOKEN"
                return _error(401, text)._replace(headers={"WWW-Authenticate": "Bearer"})
            try:
                return await answer(request)
            except AioparallelError as error:
                return _error(400 if isinstance(error, ConfigurationError) else 409, str(error))

        return guarded

    def _log_refused(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= _LOG_PAUSE:
            self._logged_at = now
            logger.warning(
                "A request at port %d had no token or a wrong one", self.port, extra={"action": "offsets_refused"}
            )

    async def _partitions(self, request: Request) -> Answer:
        consumer = self._consumer
        assert consumer is not None
        held = [{"topic": one.topic, "partition": one.partition} for one in sorted(consumer.partitions())]
        return _json({"group": consumer.group_id, "partitions": held})

    async def _skip(self, request: Request) -> Answer:
        consumer = self._consumer
        assert consumer is not None
        partition, offsets, execute = _asked(request.body)
        found = await consumer.skip(partition, *offsets, dry_run=not execute)
        return _json({"offsets": [one._asdict() for one in found]})


def _asked(body: bytes) -> tuple[TopicPartition, Sequence[int], bool]:
    """Raises ConfigurationError."""
    try:
        asked = json.loads(body)
        topic, number, execute = asked["topic"], asked["partition"], asked["execute"]
        ranges = [range(first, last + 1) for first, last in asked["ranges"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ConfigurationError("request", Hidden(body), "must be JSON as aioparallel offsets sends it") from None
    are_typed = type(topic) is str and type(number) is int and type(execute) is bool
    if not (are_typed and ranges and all(one and one.start >= 0 for one in ranges)):
        raise ConfigurationError("request", Hidden(body), "must have topic, partition, ranges that ascend, execute")
    if sum(one.stop - one.start for one in ranges) > MOST_OFFSETS:  # len() refuses large numbers
        raise ConfigurationError("ranges", len(ranges), f"must be at most {MOST_OFFSETS:,} offsets together")
    return TopicPartition(topic, number), [offset for one in ranges for offset in one], execute


def _json(found: object, status: int = 200) -> Answer:
    return Answer(status, JSON, json.dumps(found) + "\n")


def _error(status: int, text: str) -> Answer:
    return _json({"error": text}, status)


def _checked_token(token: object) -> str:
    if not isinstance(token, str) or len(token) < _SHORTEST_TOKEN or not (token.isascii() and token.isprintable()):
        raise ConfigurationError(
            "token", Hidden(token), f"must be a secret text of at least {_SHORTEST_TOKEN} printable ASCII characters"
        )
    if token != token.strip() or " " in token:
        raise ConfigurationError("token", Hidden(token), "must be without spaces")
    return token
