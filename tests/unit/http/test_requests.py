"""What is asked, and of which host."""

from __future__ import annotations

from typing import Any

import pytest

from aioparallel.errors import ConfigurationError
from aioparallel.http import Request
from aioparallel.http.hosts import Hosts
from aioparallel.http.requests import origin_of, pairs_of


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
