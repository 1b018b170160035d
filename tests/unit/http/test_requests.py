"""What is asked, and of which host."""

from __future__ import annotations

from typing import Any

import pytest

from aioparallel.http import Request, http_handler
from aioparallel.http.hosts import Hosts
from aioparallel.http.requests import origin_of, pairs_of
from aioparallel.records.errors import ConfigurationError
from tests.support.http.asking import get


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Host/path", "https://host"),
        ("https://host:443/path", "https://host"),
        ("http://host:80?x=/y", "http://host"),
        ("http://host:443/", "http://host:443"),
        ("https://me:pw@host:8443#there", "https://host:8443"),
        ("http://[::1]:80/", "http://[::1]"),
        ("HTTP://HOST", "http://host"),
    ],
)
def test_the_host_of_an_address(url: str, origin: str) -> None:
    """However it is written."""
    assert origin_of(url) == origin


def test_parameters_become_texts() -> None:
    """A list is several of one name, None is left out."""
    params = {"a": [1, 2, None], "b": None, "c": True, "d": ("x",), "e": "y"}
    assert pairs_of(params) == [("a", "1"), ("a", "2"), ("c", "true"), ("d", "x"), ("e", "y")]
    assert pairs_of([("a", 1), ("a", None)]) == [("a", "1")]


async def test_each_host_has_one_gate() -> None:
    """Also those whose names begin alike, and without a path."""
    hosts = Hosts(1)
    first = hosts.of_url("http://host:808/x")
    assert hosts.of_url("http://host:8081").name == "http://host:8081"
    assert hosts.of_url("http://host:8081/") is hosts.of_url("http://host:8081")
    assert hosts.of_url("http://host:808") is first
    assert hosts.of_url("http://HOST:808/") is first


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"timeout": 0}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"headers": {"X-Count": 5}}, "X-Count"),
        ({"headers": {"X-Name": "a\r\nX-Other: b"}}, "X-Name"),
        ({"headers": {"X-Na\nme": "a"}}, "X-Na"),
        ({"json": {"x": float("nan")}}, "json"),
        ({"json": {}, "content": b""}, "content"),
    ],
)
def test_what_cannot_be_asked_is_refused_at_once(options: dict[str, Any], name: str) -> None:
    """By its name, and without what may be secret."""
    with pytest.raises(ConfigurationError, match=name) as refused:
        Request("POST", "http://host/", **options)
    assert "X-Other" not in str(refused.value)


@pytest.mark.parametrize(
    ("request_of", "says"),
    [
        (lambda: Request("FETCH", "http://x"), "must be one of"),
        (lambda: Request("GET", ""), "must be a text"),
        (lambda: Request("POST", "http://x", json=object()), "cannot be written as JSON"),
        (lambda: Request("POST", "http://x", json=1, content=b"1"), "cannot be combined with json"),
    ],
)
def test_requests_that_are_none(request_of: Any, says: str) -> None:
    """What is wrong with it is said where it is made."""
    with pytest.raises(ConfigurationError, match=says):
        request_of()


@pytest.mark.parametrize("value", ["ü", "€", "\ud800", "a\r\nX: y", "a\0", "\x7f"])
def test_values_of_headers_are_one_line_of_ascii(value: str) -> None:
    """One client would send the rest and another would not; and what it is, is not told."""
    with pytest.raises(ConfigurationError, match=r"Request headers\['X'\]='...': must be one line of ASCII"):
        Request("GET", "http://x", headers={"X": value})
    with pytest.raises(ConfigurationError, match=r"http_handler headers\['X'\]='...'"):
        http_handler(get, headers={"X": value})
    assert Request("GET", "http://x", headers={"X": "a\tb ~"}).headers == {"X": "a\tb ~"}


@pytest.mark.parametrize("name", ["", "ü", "a b", "a:b", "a\n"])
def test_names_of_headers(name: str) -> None:
    """Those of RFC 9110: nothing else is put where a name stands."""
    with pytest.raises(ConfigurationError, match="must have a name of"):
        Request("GET", "http://x", headers={name: "1"})


@pytest.mark.parametrize("url", ["http://x/\ud800", "http://\ud800/", "/?a=\ud800", "/a\nb", "/a\0b", "/\x7f", "/a\tb"])
def test_what_no_address_holds(url: str) -> None:
    """One client would leave it out, and so ask something else."""
    with pytest.raises(ConfigurationError, match="Request url"):
        Request("GET", url)
    with pytest.raises(ConfigurationError, match="http_handler base_url"):
        http_handler(get, base_url=f"http://x{url}")
    assert Request("GET", "http://ü.example/ü\u00a0x y").url == "http://ü.example/ü\u00a0x y"


def test_texts_that_are_half_a_character() -> None:
    """In a body and in parameters."""
    with pytest.raises(ConfigurationError, match="Request content"):
        Request("POST", "http://x", content="\ud800")
    for params in ({"a": "\ud800"}, {"\ud800": 1}):
        with pytest.raises(ConfigurationError, match="Request params"):
            pairs_of(params)
