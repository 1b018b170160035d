"""What has gone wrong with a request, in words of our own: the errors of clients may hold headers, whole addresses, and
parts of answers."""

from __future__ import annotations

from typing import Final

from aioparallel.http.bodies import Unreadable

__all__ = ["reason_of", "was_lost"]

# Of clients that stand over another one: they call a refused connection a timeout.
_OVER_ANOTHER: Final = ("httpx", "httpx2", "httpx_aiohttp")
_LOST: Final = frozenset(
    {
        "BrokenPipeError",
        "ClientConnectionResetError",
        "ClientOSError",
        "ConnectionResetError",
        "ReadError",  # these two of httpcore, while it waits for the head
        "ServerDisconnectedError",
        "WriteError",
    }
)
# Where aiohttp has its errors of the protocol. Their texts are pieces of the answer.
_NO_HTTP: Final = "aiohttp.http_exceptions"
# httpcore has one error for all that breaks the protocol.
_LOST_TEXT: Final = "Server disconnected without sending a response"


def reason_of(error: Exception) -> str:
    """For the message of a failure: the kind of what is beneath it, and what the system calls it."""
    if isinstance(error, Unreadable):
        return str(error)
    found = _clients_own(error)
    cause = found.__cause__ or found
    strerror = cause.strerror if isinstance(cause, OSError) else None
    name = type(cause).__name__
    if type(cause).__module__ == _NO_HTTP:
        return f"its answer breaks off, or is no HTTP ({name})"
    return f"{name} ({strerror})" if strerror else name


def was_lost(error: Exception) -> bool:
    """Whether the connection has ended before the head of the answer has come: so it does where the server closes one
    that it has kept, while something is sent on it."""
    found = _clients_own(error)
    if type(found).__name__ in _LOST:
        return True
    return type(found).__name__ == "RemoteProtocolError" and _LOST_TEXT in str(found)


def _clients_own(error: BaseException) -> BaseException:
    while _package(error) in _OVER_ANOTHER and error.__cause__ is not None:
        error = error.__cause__
    return error


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]
