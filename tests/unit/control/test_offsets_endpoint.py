"""A running consumer is asked from the command line to skip records, through its endpoint."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from aioparallel import ConfigurationError, FailurePolicy, ParallelConsumer, Record, RetryPolicy
from aioparallel.control import OffsetsEndpoint
from aioparallel.testing.memory import InMemoryBroker
from tests.support.command_line import Ran, invoke
from tests.support.memory.consuming import committed, consumer_of, produce
from tests.support.waiting import until

TOKEN = "a-secret-of-the-tests"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
LATER = FailurePolicy(retry=RetryPolicy(first_delay=3600, max_delay=3600))
SKIP: dict[str, Any] = {"topic": "t", "partition": 0, "ranges": [[1, 1]], "execute": True}


@pytest.fixture
def broker() -> InMemoryBroker:
    """Four records; the handler of offset 1 fails."""
    broker = InMemoryBroker()
    broker.create_topic("t", 1)
    produce(broker, [b"a", b"b", b"b", b"c"])
    return broker


async def handle(record: Record) -> None:
    if record.offset == 1:
        raise ValueError


@asynccontextmanager
async def stuck(
    broker: InMemoryBroker, endpoint: OffsetsEndpoint | None = None
) -> AsyncIterator[tuple[ParallelConsumer[Any, Any], str]]:
    """A consumer that runs with one record stuck, and the address of its endpoint."""
    endpoint = endpoint or OffsetsEndpoint(0, TOKEN)
    consumer = consumer_of(broker, failures=LATER, extensions=[endpoint])
    async with asyncio.timeout(60), consumer:
        task = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer.stats().parked == 1 and consumer.stats().succeeded == 2)
        yield consumer, f"http://127.0.0.1:{endpoint.port}"
        consumer.stop()
        await task


async def skip(*arguments: str, token: str = TOKEN) -> Ran:
    environment = {"AIOPARALLEL_OFFSETS_TOKEN": token, "AIOPARALLEL_BOOTSTRAP_SERVERS": "localhost:1"}
    return await asyncio.to_thread(invoke, "offsets", "skip", *arguments, environment=environment)


async def test_a_stuck_record_is_skipped(broker: InMemoryBroker) -> None:
    """First a dry run, which says where it is; then it is done and committed."""
    async with stuck(broker) as (consumer, url):
        ran = await skip("g", "t:0:0-2", "--via", url)
        assert (ran.exit_code, ran.stderr.splitlines()) == (
            0,
            [
                "t:0:0: complete already",
                "t:0:1: waits for its next attempt -> would be skipped",
                "t:0:2: waits behind others -> would be skipped",
                "Nothing was changed: this was a dry run. --execute does it.",
            ],
        )
        assert consumer.stats().skipped == 0
        ran = await skip("g", "t:0:1", "--via", url, "--execute")
        assert (ran.exit_code, ran.stderr.splitlines()) == (
            0,
            ["t:0:1: waits for its next attempt -> skipped", "Committed by 1 member of group g."],
        )
        ran = await skip("g", "t:0:0", "--via", url, "--execute")
        assert ran.stderr.splitlines() == ["t:0:0: complete already", "Nothing was changed."]
        assert committed(broker) in (2, 4)
        await until(lambda: committed(broker) == 4)
        assert (consumer.stats().skipped, consumer.stats().succeeded) == (1, 3)


async def test_the_member_that_has_the_partition_does_it(broker: InMemoryBroker, tmp_path: Path) -> None:
    """Others are asked as well. If none has it, the message says what each of them has."""
    other = InMemoryBroker()
    other.create_topic("t", 1)
    produce(other, [b"a", b"b", b"b", b"c"])
    other.create_topic("u", 1)
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    async with stuck(broker) as (_, first), stuck(other) as (_, second):
        via = ("--via", first, "--via", second, "--via", "http://127.0.0.1:1", "--token-file", str(file))
        ran = await skip("g", "u:0:1", *via, token="")
        assert ran.exit_code == 1
        assert ran.stderr.startswith("none of the members that answered has u:0 of group 'g':") or (
            "none of the members that answered has u:0 of group 'g':" in ran.stderr
        )
        assert f"{first}: it has t:0" in ran.stderr
        assert f"{second}: it has t:0" in ran.stderr
        assert "http://127.0.0.1:1: " in ran.stderr
        ran = await skip("g", "t:0:1", "--via", "http://127.0.0.1:1", "--token-file", str(file), token="")
        assert "no member can be asked for t:0 of group 'g': http://127.0.0.1:1: " in ran.stderr
        ran = await skip("h", "t:0:1", *via, token="")
        assert f"{first}: it is a member of group 'g'" in ran.stderr
        ran = await skip("g", "t:0:1", *via, "--execute", token="")
        assert ran.exit_code == 0
        assert committed(broker) in (2, 4)
        assert committed(other) == 1


async def test_what_the_consumer_refuses_is_said(broker: InMemoryBroker) -> None:
    """And nothing is changed, also in the partitions that were named before."""
    async with stuck(broker) as (consumer, url):
        ran = await skip("g", "t:0:1", "t:0:9", "--via", url, "--execute")
        assert (ran.exit_code, "t-0: offset 9: the log ends at 4" in ran.stderr) == (1, True)
        assert consumer.stats().skipped == 0


async def test_more_offsets_than_one_request_takes(broker: InMemoryBroker) -> None:
    """The command says so, and asks nobody; nobody is taken for another server."""
    async with stuck(broker) as (consumer, url):
        ran = await skip("g", *[f"t:0:{10**12 + 2 * number}" for number in range(3_000)], "--via", url, "--execute")
        said = "3,000 ranges of t-0 do not fit into one request of 65,536 bytes: skip fewer of them at once"
        assert (ran.exit_code, said in ran.stderr) == (1, True), ran.stderr
        assert consumer.stats().skipped == 0


async def test_nobody_skips_without_the_token(broker: InMemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """401, one log line without the token, and the command says so."""
    with caplog.at_level(logging.DEBUG):
        async with stuck(broker) as (consumer, url), httpx.AsyncClient() as client:
            for headers in ({}, {"Authorization": TOKEN}, {"Authorization": "Bearer x"}, {"Authorization": "Basic x"}):
                answer = await client.post(f"{url}/offsets/skip", json=SKIP, headers=headers)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
                assert (await client.get(f"{url}/offsets", headers=headers)).status_code == 401
            ran = await skip("g", "t:0:1", "--via", url, token="another-one-than-that")
            assert (ran.exit_code, "the token is missing or wrong" in ran.stderr) == (1, True)
            assert "another-one" not in ran.output
            assert consumer.stats().skipped == 0
            assert (await client.get(f"{url}/offsets", headers=AUTHORIZED)).json() == {
                "group": "g", "partitions": [{"topic": "t", "partition": 0}],
            }  # fmt: skip
    assert [one.__dict__.get("action") for one in caplog.records].count("offsets_refused") == 1
    assert TOKEN not in caplog.text
    assert TOKEN not in repr(OffsetsEndpoint(0, TOKEN))


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": 1}, {"partition": "0"}, {"partition": True}, {"ranges": []}, {"ranges": [[2, 1]]},
        {"ranges": [[-1, 1]]}, {"ranges": [1]}, {"ranges": [["a", "b"]]}, {"execute": 1}, {"execute": None},
        {"ranges": [[0, 10**12]]}, {"ranges": [[0, 2**70]]}, {"ranges": [[0, 2**63]]},
    ],
)  # fmt: skip
async def test_wrong_requests_are_refused(broker: InMemoryBroker, wrong: dict[str, Any]) -> None:
    """With 400, also what is no JSON."""
    async with stuck(broker) as (consumer, url), httpx.AsyncClient(headers=AUTHORIZED) as client:
        answer = await client.post(f"{url}/offsets/skip", json={**SKIP, **wrong})
        assert (answer.status_code, "error" in answer.json()) == (400, True)
        for body in (b"", b"[]", b"{", b"\xff", b"[" * 60_000):
            assert (await client.post(f"{url}/offsets/skip", content=body)).status_code == 400
        assert (await client.post(f"{url}/offsets/skip", content=b" " * 70_000)).status_code == 413
        assert (await client.get(f"{url}/offsets/skip")).status_code == 405
        assert (await client.get(f"{url}/metrics")).status_code == 404
        assert consumer.stats().skipped == 0


async def test_it_listens_while_the_consumer_runs(broker: InMemoryBroker) -> None:
    """And a port that is in use ends the run."""
    endpoint = OffsetsEndpoint(0, TOKEN)
    async with stuck(broker, endpoint) as (_, url):
        consumer = consumer_of(broker, extensions=[OffsetsEndpoint(endpoint.port, TOKEN)])
        with pytest.raises(ConfigurationError, match=r"is in use at 127\.0\.0\.1"):
            async with consumer:
                await consumer.run(handle)
    ran = await skip("g", "t:0:1", "--via", url)
    assert (ran.exit_code, "Connect" in ran.stderr or "refused" in ran.stderr) == (1, True)


@pytest.mark.parametrize("token", ["", "short", "x" * 15, "ä" * 20, "with spaces in the middle", 5, None])
def test_a_token_must_be_a_secret(token: Any) -> None:
    """The error does not show it."""
    with pytest.raises(ConfigurationError, match="must be") as caught:
        OffsetsEndpoint(0, token)
    assert not token or str(token) not in str(caught.value).replace("16", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--via", "127.0.0.1:9180"), "--via='127.0.0.1:9180': must be the address of a member"),
        (("--via", "http://user@host"), "must be the address of a member"),
        (("--via", "http://127.0.0.1:1/ä"), "must be the address of a member"),
        (("--via", "http://bücher.example:1"), "must be the address of a member"),
        (("--via", "http://127.0.0.1:1/a b"), "must be the address of a member"),
        (("--via", "http://127.0.0.1:0"), "must be the address of a member"),
        (("--via", "http://127.0.0.1:1", "--token-file", "/no/such/file"), "cannot be read"),
    ],
)
async def test_wrong_use_is_named(arguments: tuple[str, ...], said: str) -> None:
    """Before anything is connected."""
    ran = await skip("g", "t:0:1", *arguments)
    assert (ran.exit_code, said in ran.stderr) == (2, True), ran.stderr
    ran = await skip("g", "t:0:1", "--via", "http://127.0.0.1:1", token="")
    assert (ran.exit_code, "or the variable AIOPARALLEL_OFFSETS_TOKEN" in ran.stderr) == (2, True)


async def test_another_server_is_not_taken_for_an_endpoint() -> None:
    """What answers something else, or nothing."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n<html>")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        ran = await skip("g", "t:0:1", "--via", f"http://127.0.0.1:{port}")
    assert (ran.exit_code, "this is no OffsetsEndpoint (status 200)" in ran.stderr) == (1, True)
