"""Starting the in-memory client, and asking it, when things go wrong. What every client does is in tests/contract."""

from __future__ import annotations

import asyncio
import re

import pytest

from aioparallel.records.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ConfigurationError,
    ConsumerStateError,
)
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, InMemoryClient, Request
from tests.support.memory.listener import P0, Listener, client_of, joined, now

NOT_COORDINATOR = Fault(error=ErrorCode.NOT_COORDINATOR)


async def test_start_waits_for_a_broker_that_comes_back(broker: InMemoryBroker) -> None:
    """A broker that is down at first is waited for, up to the timeout."""
    broker.go_down()
    asyncio.get_running_loop().call_later(3, broker.come_back)
    await client_of(broker).start(5)
    assert 2.99 <= now() < 3.2


async def test_start_gives_up_in_time(broker: InMemoryBroker) -> None:
    """A broker that is down, or never answers, is BrokerUnreachable at the timeout."""
    broker.faults.always(Request.CONNECT, Fault(is_request_lost=True))
    with pytest.raises(BrokerUnreachable, match="5 s"):
        await client_of(broker).start(5)
    assert now() == pytest.approx(5)
    broker.go_down()
    with pytest.raises(BrokerUnreachable):
        await client_of(broker).start(5)
    assert now() == pytest.approx(10)


async def test_a_refused_login_is_told_at_once(broker: InMemoryBroker) -> None:
    """Wrong credentials are AuthenticationFailed, without waiting for the timeout."""
    broker.is_login_refused = True
    with pytest.raises(AuthenticationFailed, match="login"):
        await client_of(broker).start(5)
    assert now() < 1


async def test_wrong_order_is_refused(broker: InMemoryBroker) -> None:
    """A client is started once and subscribed once, in this order."""
    client = client_of(broker)
    with pytest.raises(ConsumerStateError):
        client.subscribe(["t"], Listener())
    await client.start(1)
    with pytest.raises(ConsumerStateError):
        await client.start(1)
    client.subscribe(["t"], Listener())
    with pytest.raises(ConsumerStateError):
        client.subscribe(["t"], Listener())
    await client.stop(1)
    with pytest.raises(ConsumerStateError):
        await client.start(1)


@pytest.mark.parametrize("option", ["session_timeout", "heartbeat_interval", "rebalance_timeout"])
def test_times_must_be_above_zero(broker: InMemoryBroker, option: str) -> None:
    """Each time option of 0 is refused by its name."""
    with pytest.raises(ConfigurationError, match=option):
        InMemoryClient(broker, "g", **{option: 0.0})  # type: ignore[arg-type]  # the other options are no floats


def test_options_must_fit_together(broker: InMemoryBroker) -> None:
    """A heartbeat interval that lets the session expire, and an unknown isolation level, are refused."""
    with pytest.raises(ConfigurationError, match="heartbeat_interval=5"):
        InMemoryClient(broker, "g", session_timeout=5.0, heartbeat_interval=5.0)
    with pytest.raises(ConfigurationError, match="isolation_level"):
        InMemoryClient(broker, "g", isolation_level="dirty")  # type: ignore[arg-type]  # that is the point


async def test_asking_is_retried_and_bounded(broker: InMemoryBroker) -> None:
    """Questions are asked again while the broker says that it will pass, and are TimeoutError at the timeout."""
    client, _ = await joined(broker)
    broker.faults.script(Request.OFFSET_FETCH, NOT_COORDINATOR, NOT_COORDINATOR)
    assert await client.committed([P0], timeout=5) == {}
    broker.go_down()
    for ask in (
        client.committed([P0], 5),
        client.partitions(["t"], 5),
        client.partitions(re.compile("t"), 5),
        client.beginning_offsets([P0], 5),
        client.end_offsets([P0], 5),
        client.offsets_for_times({P0: 0}, 5),
    ):
        began = now()
        with pytest.raises(TimeoutError):
            await ask
        assert now() - began == pytest.approx(5)
    await client.stop(5)
