"""Runs the commands in the docstring of an example, like a user who has read nothing else."""

from __future__ import annotations

import ast
import asyncio
import shlex
import signal
import sys
import tomllib
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self

import httpx
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord

from aioparallel.testing.brokers.ports import free_ports
from aioparallel.testing.processes.child import Child
from tests.support.waiting import DEADLINE, until

__all__ = ["ROOT", "Newcomer"]

ROOT: Final = Path(__file__).parents[2]
PORTS: Final = ("8000", "8080", "8081")
"""The ports in the docstrings. They may be taken on this machine, so others are used; a broker gets a free one."""
FILLING: Final = (
    "examples/orders.py",
    "examples.fill_flights",
    "examples/priority/order_mail.py",
    "examples/kmq/order_jobs.py",
    "examples/share/order_jobs.py",
    "share",
)
"""Programs whose end is waited for before the next command is typed."""


class Newcomer:
    """Types the commands of ``examples/{name}.py``, each into a terminal of its own; leaving closes them all."""

    def __init__(self, name: str, directory: Path) -> None:
        text = (ROOT / "examples" / f"{name}.py").read_text()
        self._ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
        for port, other in self._ports.items():
            text = text.replace(port, other)
        lines = (ast.get_docstring(ast.parse(text)) or "").splitlines()
        self._commands = [words for line in lines if line.startswith("    ") and (words := typed(line))]
        self._directory = directory
        self._open = AsyncExitStack()
        # One for all that is asked, for making one takes longer than what it asks; each time on a new connection.
        self._curl = httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
        self.environment: dict[str, str] = {}
        self.terminals: dict[str, Child] = {}
        """What goes on running, by the last part of its program, as in ``first.py`` and ``broker``, or its module."""

    async def __aenter__(self) -> Self:
        try:
            await self._open.enter_async_context(self._curl)
            for words in self._commands:
                await self._type(words)
        except BaseException:
            await self._open.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for child in self.terminals.values():
            child.signal(signal.SIGHUP)  # as a terminal that is closed: what does not read its input hears of it
        await self._open.aclose()

    async def _type(self, words: list[str]) -> None:
        if words[0] == "pip":
            check_extra(words[-1])
        elif words[0] == "curl":
            await until(lambda: self.answers(words[1]), what=words[1])
        elif program_of(words) in FILLING:
            await (await self._start(words)).ended(DEADLINE)
        else:
            is_broker = words[1] == "broker"
            child = await self._start([*words, "--port", "0"] if is_broker else words)
            self.terminals[Path(program_of(words)).name] = child
            while is_broker and not self.environment:
                if (line := (await child.line(DEADLINE)).strip()).startswith("export "):
                    self.environment = dict([line.removeprefix("export ").split("=")])

    async def _start(self, words: list[str]) -> Child:
        program = Path(sys.executable).with_name(words[0])
        name = program_of(words)
        log = self._directory / f"{Path(name).name.removesuffix('.py')}.log"
        child = Child(
            name,
            [str(program), *words[1:]],
            log=log,
            environment={**self.environment, "PYTHONUNBUFFERED": "1"},
            directory=ROOT,
        )
        return await self._open.enter_async_context(child)

    def url(self, port: str, path: str) -> str:
        """The address for this port of the docstring."""
        return f"http://localhost:{self._ports[port]}{path}"

    async def get(self, url: str) -> httpx.Response:
        """What curl shows."""
        return await self._curl.get(url if url.startswith("http") else f"http://{url}")

    async def answers(self, url: str) -> bool:
        """Whether a server answers and has found the page."""
        try:
            return (await self.get(url)).is_success
        except httpx.TransportError:
            return False

    async def produce(self, topic: str, value: bytes) -> None:
        """One record, to where the exported variable says."""
        async with AIOKafkaProducer(bootstrap_servers=self._servers) as producer:
            await producer.send_and_wait(topic, value)

    async def read(self, topic: str, count: int) -> list[ConsumerRecord]:
        """The first so many records of a topic."""
        async with (
            asyncio.timeout(DEADLINE),
            AIOKafkaConsumer(topic, bootstrap_servers=self._servers, auto_offset_reset="earliest") as consumer,
        ):
            return [await consumer.getone() for _ in range(count)]

    @property
    def _servers(self) -> str:
        return self.environment["AIOPARALLEL_BOOTSTRAP_SERVERS"]


def typed(line: str) -> list[str]:
    """The words of a command without its remark."""
    return shlex.split(line, comments=True)


def program_of(words: list[str]) -> str:
    """What a command starts: a file, a module, or a command of ``aioparallel``."""
    return words[2] if words[1] == "-m" else words[1]


def check_extra(requirement: str) -> None:
    """``.[examples]`` can be installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert requirement.removeprefix(".[").removesuffix("]") in project["optional-dependencies"]
