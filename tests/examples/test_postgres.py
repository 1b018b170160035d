"""examples/postgres.py: the server is there, and nothing of it afterwards, whatever ends who started it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from aioparallel.testing.processes.child import Child
from examples.postgres import postgres
from tests.support.waiting import DEADLINE, until

pytestmark = pytest.mark.timeout(60)


def directory_of(address: str) -> Path:
    """Where the server with this address keeps everything."""
    return Path(parse_qs(urlsplit(address).query)["host"][0])


def is_running(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def ask(address: str, question: str) -> object:
    """The answer of a database."""
    connection = await asyncpg.connect(address)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


@pytest.mark.parametrize(("durable", "fsync"), [(False, "off"), (True, "on")])
async def test_a_server_of_ones_own(durable: bool, fsync: str) -> None:
    """It answers within the block, syncs what is to be durable, and leaves nothing behind."""
    with postgres(durable=durable) as address:
        assert await ask(address, "SHOW fsync") == fsync
        assert directory_of(address).is_dir()
    assert not directory_of(address).exists()


async def test_it_goes_when_the_block_fails() -> None:
    """An exception in the block comes out of it, and the server has ended all the same."""
    with pytest.raises(ZeroDivisionError), postgres() as address:  # noqa: PT012
        pid = int((directory_of(address) / "data" / "postmaster.pid").read_text().split()[0])
        raise ZeroDivisionError
    assert not directory_of(address).exists()
    assert not is_running(pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_the_command(number: signal.Signals, tmp_path: Path) -> None:
    """It tells where the server is; Ctrl-C, SIGTERM and SIGKILL end both, and the data go."""
    log, environment = tmp_path / "postgres.log", {"PYTHONUNBUFFERED": "1"}
    async with Child.of_module("PostgreSQL", "examples.postgres", log=log, environment=environment) as child:
        while not (address := (await child.line(DEADLINE)).strip()).startswith("postgresql://"):
            pass
        assert await ask(address, "SELECT 1 + 1") == 2
        directory = directory_of(address)
        pid = int((directory / "data" / "postmaster.pid").read_text().split()[0])
        child.signal(number)
        await until(lambda: not child.running, what="the command to end")
        assert child.exit_code == (-number if number == signal.SIGKILL else 0)
        await until(lambda: not is_running(pid), what="the server to end")
        await until(lambda: not directory.exists(), what="the data to go")
