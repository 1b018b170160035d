"""What is asked of a service."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aioparallel.errors import ConfigurationError
from aioparallel.handling import check_time
from aioparallel.wording import kind_of

__all__ = ["Params", "Request", "origin_of", "shown"]

Param = str | int | float | bool | None
Params = Mapping[str, Param | Sequence[Param]] | Sequence[tuple[str, Param]]
"""Of the query, in order; None leaves one out, and a list is several of one name."""

_BREAK: Final = re.compile(r"[\r\n\0]")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110
_USUAL: Final = {"http": ":80", "https": ":443"}
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Request:
    """One request.

    ``method``: ``"GET"``, ``"POST"``, ...
    ``url``: ``"https://host/path"``, or ``"/path"`` where the handler has a ``base_url``.
    ``params``: of the query; are added to those in ``url``.
    ``headers``: of this request.
    ``json``: anything that ``json.dumps`` takes; it becomes the body.
    ``content``: the body, as bytes or as text; not beside ``json``.
    ``timeout``: seconds for this request, from its begin to the last byte of the answer; None: the handler's.

    Raises ConfigurationError for what cannot be one.
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
            raise ConfigurationError("Request url", given, 'must be a text as "https://host/path"')
        if not (url.isascii() or _is_text(url)):
            raise ConfigurationError("Request url", shown(url), "has a lone surrogate, which is no character")
        self.method = method
        self.url = url
        self.params = params
        self.timeout = timeout
        if timeout is not None:
            check_time("Request timeout", timeout)
        self.headers = headers or {}
        if headers:
            _check_headers(headers)
        self.content = content.encode() if isinstance(content, str) else content
        if json is not None:
            if content is not None:
                raise ConfigurationError("Request content", content, "cannot stand beside json: one body at most")
            self.content = _encoded(json)
            if not _has(self.headers, "content-type"):
                self.headers = {**self.headers, "Content-Type": "application/json"}
        elif self.content is not None and not isinstance(self.content, bytes):
            raise ConfigurationError("Request content", content, "must be bytes or a text")

    def __repr__(self) -> str:
        return f"<Request {self.method} {shown(self.url)}>"


def _check_headers(headers: Mapping[str, str]) -> None:
    given: Mapping[Any, Any] = headers
    for name, value in given.items():
        if type(name) is not str or type(value) is not str:
            raise ConfigurationError(f"Request headers[{name!r}]", kind_of(value), "must be a text")
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"Request headers[{name!r}]", "...", "is not the name of a header")
        if _BREAK.search(value) or not _is_text(value):
            raise ConfigurationError(f"Request headers[{name!r}]", "...", "must be one line of text")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeError:  # a lone surrogate
        return False
    return True


def _encoded(value: object) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigurationError("Request json", kind_of(value), f"cannot be written as JSON: {error}") from error


def _has(headers: Mapping[str, str], name: str) -> bool:
    return any(one.lower() == name for one in headers)


def origin_of(url: str) -> str:
    """Scheme, host and port, without a user and the port that goes without saying: ``"https://host:8443"``. Raises
    ConfigurationError for what has none."""
    scheme, found, rest = url.partition("://")
    if not found or scheme.lower() not in ("http", "https"):
        raise ConfigurationError(
            "Request url",
            shown(url),
            'must begin with "https://" or "http://", or with "/" where the handler has a base_url',
        )
    for mark in "/?#":
        rest = rest.partition(mark)[0]
    host = rest.rpartition("@")[2]
    if not host:
        raise ConfigurationError("Request url", shown(url), "names no host")
    return f"{scheme}://{host}".lower().removesuffix(_USUAL[scheme.lower()])


def shown(url: str) -> str:
    """For messages and logs: without what may be secret, the query and a user with his password."""
    bare = url.partition("?")[0].partition("#")[0]
    scheme, found, rest = bare.partition("://")
    if not found:
        return bare
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def pairs_of(params: Params) -> list[tuple[str, str]]:
    """As texts, a list as several of one name."""
    given: Any = params.items() if isinstance(params, Mapping) else params
    return [
        (name, _text(one))
        for name, value in given
        for one in (value if isinstance(value, list | tuple) else (value,))
        if one is not None
    ]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
