"""Every Python block of the documentation runs as it stands there. (Those of Spark: ``tests/spark/test_docs.py``; those
of the tutorial: ``test_tutorial.py``.)"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from aioparallel.testing import Broker, EmbeddedBroker, LocalKafka, Secured
from aioparallel.testing.processes.child import Child
from tests.conftest import PASSWORD

from .blocks import ROOT, Block, blocks, pages
from .given import NOTHING, Given
from .of_pages import GIVEN

DEADLINE = 300.0
"""Seconds: against what hangs, not a verdict."""
_PYTEST = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"


def _case(block: Block) -> object:
    given = GIVEN.get(block.name, NOTHING)
    marks = [pytest.mark.real] if given.compacted or given.starts_kafka or given.listener else []
    if block.name.startswith("aioparallel."):  # of a docstring: a page has much the same
        marks.append(pytest.mark.slow)
    return pytest.param(block, given, id=block.name, marks=marks)


@pytest.fixture
async def service() -> AsyncIterator[str]:
    """Customers and their orders; number 7 is throttled at first."""
    throttled: set[str] = set()

    async def answer(request: web.Request) -> web.Response:
        number = request.match_info.get("order", request.match_info["customer"])
        if number == "nobody":
            return web.Response(status=404)
        if number.endswith("7") and number not in throttled:
            throttled.add(number)
            return web.Response(status=429, headers={"retry-after": "0.05"})
        return web.json_response({"order": int(number.lstrip("c"))})

    async def token(_: web.Request) -> web.Response:
        return web.json_response({"access_token": Secured({}).token("me"), "expires_in": 60})

    app = web.Application()
    app.router.add_post("/token", token)
    app.router.add_get("/customers/{customer}", answer)
    app.router.add_get("/customers/{customer}/orders/{order}", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/"))


@pytest.fixture
async def servers(request: pytest.FixtureRequest, given: Given) -> AsyncIterator[str]:
    """A broker with the topics of this block, if it asks for any."""
    if given.listener is not None:
        secured: LocalKafka = request.getfixturevalue("secured_kafka")
        await given.fill(secured)
        yield secured.secured.bootstrap_servers(given.listener)
    elif given.compacted or given.starts_kafka:
        kafka: Broker = request.getfixturevalue("local_kafka")  # where there is none, the test is skipped
        await given.fill(kafka)
        yield kafka.bootstrap_servers
    elif given.topics:
        async with EmbeddedBroker() as broker:
            await given.fill(broker)
            yield broker.bootstrap_servers
    else:
        yield ""


@pytest.mark.parametrize(("block", "given"), [_case(one) for one in blocks() if not one.runs_elsewhere])
async def test_it_runs(
    request: pytest.FixtureRequest, block: Block, given: Given, servers: str, service: str, tmp_path: Path
) -> None:
    """As a program of its own, or as the tests that it shows, with what a reader has around it."""
    program = tmp_path / "test_program.py"
    program.write_text(
        given.around(block.code, {"localhost:9092": servers, "kafka:9093": servers, "{service}": service})
    )
    if given.listener is not None:
        _lay_out(request.getfixturevalue("secured_kafka"), tmp_path)
    if "def test_" in block.code:
        (tmp_path / "pytest.ini").write_text(_PYTEST)
        command = ["pytest", "-q", "--kafka-broker=embedded", "-p", "no:cacheprovider", str(program)]
    else:
        command = ["tests.docs.program", str(program), str(given.ends)]
    child = Child(
        block.name,
        [sys.executable, "-W", "error", "-m", *command],
        log=tmp_path / "log",
        environment={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        directory=tmp_path,
    )
    said = ""
    async with asyncio.timeout(DEADLINE), child:
        async for line in child.lines():
            said += line + "\n"
            if given.lines and said.count("\n") == given.lines:
                child.terminate()
        await child.ended()
    assert re.fullmatch(given.says, said), said


def _lay_out(kafka: LocalKafka, directory: Path) -> None:
    """The files that a reader of ``docs/security.md`` has."""
    both = kafka.secured.authority.issue("reader.pem", name="me").read_text()
    key, begin, rest = both.partition("-----BEGIN CERTIFICATE-----")
    files = {"ca.pem": kafka.secured.authority.ca_file.read_text(), "me.pem": begin + rest, "me.key": key}
    for name, text in (*files.items(), ("password", f"{PASSWORD}\n")):
        (directory / name).write_text(text)


def test_programs_of_other_libraries_are_python() -> None:
    """Those whose libraries are not installed here are marked ``py``."""
    for page in pages():
        for code in re.findall(r"^```py\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            compile(code, page, "exec")


def test_what_is_given_is_for_blocks_that_are_there() -> None:
    """None is left of a block that is gone or was renamed."""
    assert GIVEN.keys() - {one.name for one in blocks()} == set()
