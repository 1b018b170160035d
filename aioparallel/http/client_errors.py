"""Describes errors of HTTP clients without their texts, which may hold headers, queries and parts of responses."""

from __future__ import annotations

from typing import Final

from aioparallel.http.bodies import Unreadable

__all__ = ["reason_of", "was_lost"]

# Clients that wrap another one: they report a refused connection as a timeout.
_OVER_ANOTHER: Final = ("httpx", "httpx2", "httpx_aiohttp")
_LOST: Final = frozenset(
    {
        "BrokenPipeError",
        "ClientConnectionResetError",
        "ClientOSError",
        "ConnectionResetError",
        "ReadError",  # ReadError and WriteError are httpcore's, while it waits for the head
        "ServerDisconnectedError",
        "WriteError",
    }
)
# aiohttp's protocol errors. Their texts quote the response.
_NO_HTTP: Final = "aiohttp.http_exceptions"
# httpcore has one class for all protocol errors.
_LOST_TEXT: Final = "Server disconnected without sending a response"


def reason_of(error: Exception) -> str:
    """The class of the underlying error, with the system's text for OSErrors."""
    if isinstance(error, Unreadable):
        return str(error)
    found = _innermost(error)
    cause = found.__cause__ or found
    strerror = cause.strerror if isinstance(cause, OSError) else None
    name = type(cause).__name__
    if type(cause).__module__ == _NO_HTTP:
        return f"its answer breaks off or is not HTTP ({name})"
    return f"{name} ({strerror})" if strerror else name


def was_lost(error: Exception) -> bool:
    """Whether the connection ended before the response began. This happens when a server closes a kept connection
    while a request is being sent on it."""
    found = _innermost(error)
    if type(found).__name__ in _LOST:
        return True
    return type(found).__name__ == "RemoteProtocolError" and _LOST_TEXT in str(found)


def _innermost(error: BaseException) -> BaseException:
    while _package(error) in _OVER_ANOTHER and error.__cause__ is not None:
        error = error.__cause__
    return error


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]
