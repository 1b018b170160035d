"""Connector: replaces connections before their login expires, keeps them if that fails, and retries at a limited
rate."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aioparallel.clients.aiokafka import connector
from aioparallel.clients.aiokafka.broker_watch import BrokerWatch
from aioparallel.clients.aiokafka.connecting import cut_off
from aioparallel.clients.aiokafka.connector import Connector
from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.aiokafka.secure_connection import LoginFailed
from aioparallel.clients.aiokafka.typed_requests import TypedRequest
from aioparallel.clients.messages.api import Api
from aioparallel.clients.messages.share_records import SHARE_ACKNOWLEDGE, SHARE_FETCH
from tests.support.waiting import DEADLINE

LIFE = 40.0


class Made:
    """A connection whose login is valid for 40 s."""

    def __init__(self) -> None:
        self.since = asyncio.get_running_loop().time()
        self.ends = self.since + LIFE
        self.has_requests = False
        self.is_open = True
        self._writer = cast("asyncio.StreamWriter", SimpleNamespace(transport=SimpleNamespace(abort=lambda: None)))

        self.logins: list[str] = []
        self.fails: dict[str, Exception] = {}

    async def obtain_secrets(self, _options: object) -> None:
        await self._step("secrets")

    async def log_in_again(self) -> None:
        await self._step("login")
        self.since = asyncio.get_running_loop().time()
        self.ends = self.since + LIFE

    async def _step(self, name: str) -> None:
        self.logins.append(name)
        await asyncio.sleep(0)
        if name in self.fails:
            raise self.fails[name]

    def age(self) -> None:
        """Nineteen twentieths of its lifetime have passed."""
        self.since, self.ends = self.since - LIFE * 0.95, self.ends - LIFE * 0.95

    async def send(self, _request: object) -> object:
        """Answers with the id of its cluster."""
        return SimpleNamespace(cluster_id="ours")

    def connected(self) -> bool:
        """Until it is closed."""
        return self.is_open

    def close(self) -> None:
        """At once."""
        self.is_open = False


class Stage:
    """A client with one broker, which accepts or refuses connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refuses = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.tries = 0
        self.made: list[Made] = []
        names = (
            "_client_id _request_timeout_ms _connections_max_idle_ms _security_protocol _ssl_context _sasl_mechanism "
            "_sasl_plain_username _sasl_plain_password _sasl_kerberos_service_name _sasl_kerberos_domain_name "
            "_sasl_oauth_token_provider _on_connection_closed"
        )
        broker = SimpleNamespace(host="kafka", port=9093)
        self.connections: Any = SimpleNamespace(
            **dict.fromkeys(names.split()),
            _conns={},
            cluster=SimpleNamespace(broker_metadata=lambda _: broker, update_metadata=None),
            close=self._close,
            send=None,
            _sync_task=None,
            force_metadata_update=lambda: None,
        )
        monkeypatch.setattr(connector, "open_connection", self._open)
        self.connector = Connector(cast("Connections", self.connections), lambda _cluster_id: True, lasting=(2,))

    async def _close(self) -> None:
        for one in self.connections._conns.values():
            one.close()

    async def _open(self, *_: object) -> Made:
        self.tries += 1
        await self.answers.wait()
        if self.refuses:
            raise LoginFailed("no token: nobody home")
        self.made.append(Made())
        return self.made[-1]


async def test_a_connection_is_left_before_its_login_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is replaced, and closed after its last answer."""
    stage = Stage(monkeypatch)
    first = await stage.connector.connect(1)
    assert await stage.connector.connect(1) is first
    (old,) = stage.made
    old.has_requests = True
    old.age()
    assert stage.connector.ready(1, 0) is None
    second = await stage.connector.connect(1)
    assert (second is first, old.is_open, await stage.connector.connect(1) is second) == (False, True, True)
    old.has_requests = False
    while old.is_open:
        await asyncio.sleep(0.05)
    await stage.connections.close()


async def test_what_is_left_is_closed_with_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if a replaced connection still waits for answers."""
    stage = Stage(monkeypatch)
    await stage.connector.connect(1)
    (old,) = stage.made
    old.has_requests = True
    old.age()
    await stage.connector.connect(1)
    await stage.connections.close()
    assert not old.is_open


async def test_where_no_new_login_can_be_had_the_old_one_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until its login expires. A new login is tried once a second, and the failure is logged once."""
    stage = Stage(monkeypatch)
    first = await stage.connector.connect(1)
    (old,) = stage.made
    old.age()
    stage.refuses = True
    with caplog.at_level(logging.WARNING):
        assert [await stage.connector.connect(1) for _ in range(5)] == [first] * 5
    assert stage.tries == 2
    (line,) = caplog.messages
    assert "no token: nobody home" in line
    assert "no token: nobody home" in stage.connector.reason(1)
    old.ends = asyncio.get_running_loop().time()
    assert await stage.connector.connect(1) is None
    await stage.connections.close()


async def test_a_slow_login_delays_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests use the old connection while its login is valid. There is one new login at a time, and closing the
    client does not wait for it."""
    stage = Stage(monkeypatch)
    broker_watch = BrokerWatch(stage.connections, "kafka:9093", 1.0)
    stage.connector = broker_watch._connector
    first = await broker_watch.get_connection(1)
    stage.answers.clear()
    stage.made[0].age()
    async with asyncio.timeout(DEADLINE):
        assert [await broker_watch.get_connection(1) for _ in range(3)] == [first] * 3
        stage.answers.set()
        while (second := await broker_watch.get_connection(1)) is first:
            await asyncio.sleep(0)
        assert (stage.tries, stage.made[0].is_open, stage.made[1].is_open) == (2, False, True)
        stage.answers.clear()
        stage.made[1].age()
        assert await broker_watch.get_connection(1) is second
        await asyncio.sleep(0)
        await stage.connections.close()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
    assert [one.is_open for one in stage.made] == [False, False]


async def test_a_connection_made_for_a_closed_client_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cutting off a client that cannot be closed leaves no connection open, whether it waits for answers or is being
    opened."""
    stage = Stage(monkeypatch)
    await stage.connector.connect(1)
    (old,) = stage.made
    old.has_requests = True
    old.age()
    await stage.connector.connect(1)
    stage.answers.clear()
    connecting = asyncio.create_task(stage.connector.connect(2))
    await asyncio.sleep(0)
    cut_off(stage.connections, ())
    stage.answers.set()
    assert await connecting is None
    assert [one.is_open for one in stage.made] == [False, False, False]


async def test_a_broker_that_moves_while_it_is_dialled_is_dialled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another broker of the same cluster may be at its old address by then, and would answer in the same way."""
    stage = Stage(monkeypatch)
    stage.answers.clear()
    connecting = asyncio.ensure_future(stage.connector.connect(1))
    while not stage.tries:
        await asyncio.sleep(0)
    moved = SimpleNamespace(host="kafka", port=9094)
    stage.connections.cluster.broker_metadata = lambda _: moved
    stage.answers.set()
    found = await connecting
    assert (found, [one.is_open for one in stage.made]) == (None, [False])
    again = cast("Any", await stage.connector.connect(1))
    assert again is stage.made[1]
    await stage.connections.close()


async def test_a_connection_that_must_not_be_replaced_gets_a_new_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after its login has ended, and if it is asked for at the same time as others. While requests are under way
    on it, it is replaced."""
    stage = Stage(monkeypatch)
    broker_watch = BrokerWatch(stage.connections, "kafka:9093", 1.0, lasting=(2,))
    first, other = [await broker_watch.get_connection(1, group=group) for group in (2, 0)]
    one, _ = stage.made
    for times in (1, 2):
        one.age()
        if times == 2:
            one.ends = one.since
        found = await asyncio.gather(*(broker_watch.get_connection(1, group=2) for _ in range(3)))
        assert found == [first] * 3
        assert one.logins == ["secrets", "login"] * times
    one.age()
    one.has_requests = True
    assert await broker_watch.get_connection(1, group=2) is first
    while stage.tries < 3:
        await asyncio.sleep(0.01)
    assert await broker_watch.get_connection(1, group=2) is not first
    assert await broker_watch.get_connection(1, group=0) is other
    await stage.connections.close()


@pytest.mark.parametrize("error", [LoginFailed("no token"), OSError("no token"), LookupError("no token")])
async def test_a_login_that_fails_on_a_connection_that_must_not_be_replaced(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Without a token the old login serves to its end. A login that was refused is the end of the connection."""
    stage = Stage(monkeypatch)
    first = await stage.connector.connect(1, 2)
    (one,) = stage.made
    one.age()
    is_expected = not isinstance(error, LookupError)
    if is_expected:
        one.fails = {"secrets": error}
        assert [await stage.connector.connect(1, 2) for _ in range(2)] == [first] * 2
        assert "no token" in stage.connector.reason(1)
        one.ends = asyncio.get_running_loop().time()
        stage.connector._paused_until.clear()
        assert await stage.connector.connect(1, 2) is None
        assert one.is_open
    stage.connector._paused_until.clear()
    one.fails = {"login": error}
    if is_expected:
        assert await stage.connector.connect(1, 2) is None
    else:
        with pytest.raises(LookupError):
            await stage.connector.connect(1, 2)
    assert not one.is_open
    stage.connector._paused_until.clear()
    assert await stage.connector.connect(1, 2) not in {None, first}
    await stage.connections.close()


@pytest.mark.parametrize(
    ("api", "is_silent"),
    [(SHARE_FETCH, False), (SHARE_ACKNOWLEDGE, True)],
)
async def test_a_broker_may_let_a_fetch_wait(
    monkeypatch: pytest.MonkeyPatch, api: Api[Any, Any], is_silent: bool
) -> None:
    """As long as it is asked to, and no other request: then it counts as silent."""
    monkeypatch.setattr("aioparallel.clients.aiokafka.broker_watch._STORED", 0.05)
    stage = Stage(monkeypatch)

    async def send(node: int, request: object, *, group: int) -> str:
        await asyncio.sleep(0.3)
        return "answer"

    stage.connections.send = send
    broker_watch = BrokerWatch(stage.connections, "kafka:9093", 1.0, 2.0, lasting=(2,))
    sending = asyncio.create_task(broker_watch.send(1, TypedRequest(api, None), group=2))
    await asyncio.sleep(0.2)
    assert (1 in broker_watch._silent) is is_silent
    assert await sending == "answer"
    assert not broker_watch._silent
    await stage.connections.close()
