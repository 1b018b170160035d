"""Calls an :class:`~aioparallel.control.OffsetsEndpoint`. One request on each connection, with deadlines."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from aioparallel.control.offsets_endpoint import LONGEST_REQUEST
from aioparallel.records.errors import ClientError, ConfigurationError
from aioparallel.records.ranges import ranges
from aioparallel.records.record import TopicPartition
from aioparallel.records.skipped import Skipped

__all__ = ["EndpointRefused", "Member"]

_ASK: Final = 10.0
"""Seconds for a connection, and for the answer to which partitions a member has."""
_SKIP: Final = 180.0
"""Seconds for a skip: handlers end, outputs are acknowledged, and it is committed."""
_LONGEST: Final = 32 * 1024 * 1024
"""Bytes of an answer."""


class EndpointRefused(ClientError):
    """A member did not do what it was asked; the message has its reason."""


class Member:
    """A consumer that runs, with its endpoint at ``url``. Raises ConfigurationError."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self._token = token
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        is_address = parts.scheme in ("http", "https") and not parts.query and port != 0
        # What is not ASCII, or has spaces, cannot be part of a request.
        is_plain = self.url.isascii() and self.url.isprintable() and " " not in self.url and "@" not in parts.netloc
        if not (is_address and is_plain and parts.hostname):
            raise ConfigurationError("via", url, "must be the address of a member, as in http://127.0.0.1:9180")
        self._host, self._netloc, self._path = parts.hostname, parts.netloc, parts.path
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None

    @property
    def is_readable(self) -> bool:
        """Whether others in the network could read the token."""
        return self._tls is None and self._host not in ("127.0.0.1", "::1", "localhost")

    async def partitions(self) -> tuple[str, list[TopicPartition]]:
        """Its group and the partitions that it has. Raises EndpointRefused, also if it does not answer."""
        found = await self._ask("GET", "/offsets", None, _ASK)
        try:
            return str(found["group"]), [TopicPartition(one["topic"], one["partition"]) for one in found["partitions"]]
        except (KeyError, TypeError):
            raise self._strange() from None

    async def skip(self, partition: TopicPartition, offsets: Sequence[int], *, execute: bool) -> list[Skipped]:
        """Skip ascending offsets; without ``execute`` only find them. Raises EndpointRefused."""
        asked = [(one.start, one.stop - 1) for one in ranges(offsets)]
        body = json.dumps({**partition._asdict(), "ranges": asked, "execute": execute}).encode()
        if len(body) > LONGEST_REQUEST:
            raise EndpointRefused(
                f"{len(asked):,} ranges of {partition} do not fit into one request of {LONGEST_REQUEST:,} bytes: skip "
                "fewer of them at once"
            )
        found = await self._ask("POST", "/offsets/skip", body, _SKIP)
        try:
            return [Skipped(one["offset"], one["was"], one["is_skipped"]) for one in found["offsets"]]
        except (KeyError, TypeError):
            raise self._strange() from None

    async def _ask(self, method: str, path: str, body: bytes | None, seconds: float) -> Any:
        try:
            async with asyncio.timeout(_ASK):
                reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        except TimeoutError:
            raise EndpointRefused(f"{self.url}: no connection within {_ASK:g} s") from None
        except (OSError, ssl.SSLError) as error:
            raise EndpointRefused(f"{self.url}: {error.strerror or error}") from error
        try:
            async with asyncio.timeout(seconds):
                writer.write(self._head(method, path, body) + (body or b""))
                await writer.drain()
                answer = await _read(reader)
        except TimeoutError:
            raise EndpointRefused(f"{self.url}: no answer within {seconds:g} s") from None
        except (OSError, ssl.SSLError) as error:
            raise EndpointRefused(f"{self.url}: the connection has ended ({error.strerror or error})") from error
        finally:
            writer.transport.abort()
        return self._checked(answer)

    def _head(self, method: str, path: str, body: bytes | None) -> bytes:
        # HTTP/1.0: the answer has no chunks, and the connection ends after it.
        lines = [
            f"{method} {self._path}{path} HTTP/1.0",
            f"Host: {self._netloc}",
            f"Authorization: Bearer {self._token}",
        ]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    def _checked(self, answer: bytes) -> Any:
        head, _, body = answer.partition(b"\r\n\r\n")
        words = head.split(b"\r\n", 1)[0].split()
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        try:
            found = json.loads(body)
        except ValueError:
            raise self._strange(status) from None
        if status != 200:
            raise EndpointRefused(f"{self.url}: {found['error']}") if _has_error(found) else self._strange(status)
        return found

    def _strange(self, status: int = 200) -> EndpointRefused:
        return EndpointRefused(f"{self.url}: this is no OffsetsEndpoint (status {status})")


def _has_error(found: object) -> bool:
    return isinstance(found, dict) and isinstance(found.get("error"), str)


async def _read(reader: asyncio.StreamReader) -> bytes:
    parts, size = list[bytes](), 0
    while size < _LONGEST and (data := await reader.read(65_536)):
        parts.append(data)
        size += len(data)
    return b"".join(parts)
