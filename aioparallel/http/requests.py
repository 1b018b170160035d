"""A request, and checks of its parts."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from aioparallel.config.handling import check_time
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.wording import kind_of

if TYPE_CHECKING:
    from aioparallel.http.responses import Response

__all__ = [
    "AroundRequests",
    "Params",
    "Request",
    "SendRequest",
    "check_headers",
    "check_url",
    "has_header",
    "origin_of",
    "pairs_of",
    "shown",
]

Param = str | int | float | bool | None
Params = Mapping[str, Param | Sequence[Param]] | Sequence[tuple[str, Param]]
"""The query in order. A value None leaves a name out; a list repeats it."""

# Some clients drop these characters, others cannot send them.
_NO_URL: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
# RFC 9110, 5.1 and 5.5. Some clients cannot send other than ASCII in a value.
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
_AUTHORITY_END: Final = re.compile(r"[/?#]")
_PORT: Final = re.compile(r"[0-9]{0,5}")
_USUAL: Final = {"http": ":80", "https": ":443"}
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Request:
    """One request.

    ``method``: ``"GET"``, ``"POST"``, ...
    ``url``: ``"https://host/path"``, or ``"/path"`` if the handler has a ``base_url``.
    ``params``: query parameters, added to those in ``url``.
    ``headers``: of this request; names and values in ASCII.
    ``json``: the body, as a value for ``json.dumps``.
    ``content``: the body, as bytes or text. Give ``json`` or ``content``, not both.
    ``timeout``: seconds for this request, from its start to the last byte of the response; None: the handler's.

    Raises ConfigurationError for wrong values.
    """

    __slots__ = ("content", "headers", "method", "params", "timeout", "url")

    method: str
    url: str
    params: Params | None
    headers: Mapping[str, str]
    content: bytes | None
    timeout: float | None

    def __init__(
        self,
        method: str,
        url: str,
        *,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        json: object = None,
        content: bytes | str | None = None,
        timeout: float | None = None,
    ) -> None:
        if method not in _METHODS:
            raise ConfigurationError("Request method", method, f"must be one of {', '.join(sorted(_METHODS))}")
        given: object = url
        if not isinstance(given, str) or not given:
            raise ConfigurationError("Request url", given and kind_of(given), 'must be a text like "https://host/path"')
        if not url.isprintable():
            check_url("Request url", url)
        self.method = method
        self.url = url
        self.params = params
        self.timeout = timeout
        if timeout is not None:
            check_time("Request timeout", timeout)
        self.headers = headers or {}
        if headers:
            check_headers("Request", headers)
        self.content = _as_bytes(content) if isinstance(content, str) else content
        if json is not None:
            if content is not None:
                raise ConfigurationError("Request content", content, "cannot be combined with json: give one body")
            self.content = _encoded(json)
            if not has_header(self.headers, "content-type"):
                self.headers = {**self.headers, "Content-Type": "application/json"}
        elif self.content is not None and not isinstance(self.content, bytes):
            raise ConfigurationError("Request content", content, "must be bytes or a text")

    def __repr__(self) -> str:
        return f"<Request {self.method} {shown(self.url)}>"


SendRequest = Callable[[Request, str, Mapping[str, str], float], Awaitable["Response"]]
"""``await send(request, url, headers, timeout)``: sends one request to the whole URL, with all its headers."""
AroundRequests = Callable[[SendRequest, Collection[str] | None], SendRequest]
"""``around(send, kept)``: returns what sends instead of ``send``. ``kept``: names of headers, in lower case, that it
does not change, besides the headers of each request; None: it changes none."""


def check_headers(whose: str, headers: Mapping[str, str]) -> None:
    """Raises ConfigurationError, whose text holds no value of a header."""
    given: Mapping[Any, Any] = headers
    seen: set[str] = set()
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigurationError(f"{whose} headers[{name!r}]", kind_of(value), "must be a text")
        if not _NAME.fullmatch(name):
            allowed = "must have a name of letters, digits and -, all ASCII"
        elif not (value.isascii() and value.isprintable()) and not _VALUE.fullmatch(value):
            allowed = "must be one line of ASCII: encode other characters, with percent signs for example"
        elif name.lower() in seen:
            allowed = "is given twice: names of headers are case-insensitive"
        else:
            seen.add(name.lower())
            continue
        raise ConfigurationError(f"{whose} headers[{name!r}]", "...", allowed)


def check_url(option: str, url: str) -> None:
    """Raises ConfigurationError for characters that no URL can have."""
    if _NO_URL.search(url):
        raise ConfigurationError(option, shown(url), "has control characters or a lone surrogate")


def _as_bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError("Request content", "...", f"cannot be written as UTF-8: {error.reason}") from error


def _encoded(value: object) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigurationError("Request json", kind_of(value), f"cannot be written as JSON: {error}") from error


def has_header(headers: Mapping[str, str], name: str) -> bool:
    """``name`` is in lower case."""
    return any(one.lower() == name for one in headers)


def origin_of(url: str) -> str:
    """Scheme, host and port, without user and default port: ``"https://host:8443"``. Raises ConfigurationError if the
    URL has no scheme or host."""
    scheme, found, rest = url.partition("://")
    if not found or scheme.lower() not in ("http", "https"):
        raise ConfigurationError(
            "Request url",
            shown(url),
            'must begin with "https://" or "http://", or with "/" if the handler has a base_url',
        )
    for mark in "/?#":
        rest = rest.partition(mark)[0]
    host = rest.rpartition("@")[2]
    if not host:
        raise ConfigurationError("Request url", shown(url), "names no host")
    return f"{scheme}://{host}".lower().removesuffix(_USUAL[scheme.lower()])


def shown(url: str) -> str:
    """The URL for messages and logs, without query, user and password, also if it is malformed."""
    scheme, found, rest = url.partition("://")
    if not found or not scheme.isalnum():
        scheme, rest = "", url.removeprefix("//")
    authority = _AUTHORITY_END.split(rest, maxsplit=1)[0]
    host, colon, port = authority.rpartition(":")
    is_broken = bool(colon) and not (_PORT.fullmatch(port) or host.startswith("["))
    if "@" in authority:
        rest = authority.rpartition("@")[2] + rest[len(authority) :]
    elif "@" in rest and (is_broken or (not scheme and authority)):
        rest = rest.rpartition("@")[2]  # the password has "/", "?" or "#" in it
    bare = rest.partition("?")[0].partition("#")[0]
    return f"{scheme}://{bare}" if scheme else bare


def pairs_of(params: Params) -> list[tuple[str, str]]:
    """Names and values as text; a list gives several pairs. Raises ConfigurationError for values that are no text."""
    given: Any = params.items() if isinstance(params, Mapping) else params
    return [
        (_text(name), _text(one))
        for name, value in given
        for one in (value if isinstance(value, list | tuple) else (value,))
        if one is not None
    ]


def _text(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError("Request params", "...", f"cannot be written as UTF-8: {error.reason}") from error
    return text
