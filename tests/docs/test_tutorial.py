"""``docs/tutorial.md``, done as a reader does it: its programs are saved, its commands are run in its order.

A program that runs until Ctrl-C is the reader's second terminal. The broker listens at a free port in place of 9092.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from aioparallel.testing.processes.child import Child
from tests.support.waiting import until

from .blocks import ROOT

PAGE: Final = ROOT / "docs/tutorial.md"
_STEP: Final = re.compile(r"^## (\d)\. ", re.MULTILINE)
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DEADLINE: Final = 120.0

pytestmark = pytest.mark.timeout(400)


class Step:
    """The blocks of a step, in order: ``python`` (its program), ``sh``, and what is printed."""

    def __init__(self, number: int) -> None:
        _, *parts = _STEP.split(PAGE.read_text())
        text = dict(zip(parts[::2], parts[1::2], strict=True))[str(number)]
        found = [(match[1], match[2]) for match in _BLOCK.finditer(text)]
        [self.program] = [code for language, code in found if language == "python"]
        self.shell = [code for language, code in found if language == "sh"]
        self.printed = [code for language, code in found if not language]
        self.number = number


class Reader:
    """A directory, and terminals in it."""

    def __init__(self, directory: Path, port: int, web_port: int, stack: AsyncExitStack) -> None:
        self._directory, self._stack = directory, stack
        self._ports = {"localhost:9092": f"localhost:{port}", "9092": str(port), "8000": str(web_port)}
        self._started = 0
        self._environment = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "AIOPARALLEL_BOOTSTRAP_SERVERS": f"localhost:{port}",
        }
        self.port = port

    def _here(self, text: str) -> str:
        for name, other in self._ports.items():
            text = text.replace(name, other)
        return text

    def save(self, step: Step) -> None:
        """Save the program of a step."""
        (self._directory / f"step{step.number}.py").write_text(self._here(step.program))

    def run(self, command: str) -> str:
        """Run commands, and return what they print."""
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._here(command)],
            cwd=self._directory,
            env={**os.environ, **self._environment},
            capture_output=True,
            text=True,
            timeout=_DEADLINE,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    async def start(self, command: str) -> Child:
        """Start a command that runs until Ctrl-C."""
        self._started += 1
        child = Child(
            command,
            ["bash", "-c", f"exec {self._here(command.strip())}"],
            log=self._directory / f"log-{self._started}",
            environment=self._environment,
            directory=self._directory,
        )
        return await self._stack.enter_async_context(child)

    async def start_broker(self, command: str) -> Child:
        """Start a broker, and wait until it listens."""
        broker = await self.start(f"{command} --port {self.port}" if "--port" not in command else command)
        while not (await broker.line(_DEADLINE)).startswith(("The embedded broker runs", "Apache Kafka 4")):
            pass
        return broker

    async def end(self, child: Child) -> None:
        """Press Ctrl-C."""
        child.signal(signal.SIGINT)
        await child.ended(_DEADLINE)


@pytest.fixture
async def reader(tmp_path: Path, unused_tcp_port_factory: pytest.FixtureRequest) -> AsyncIterator[Reader]:
    async with AsyncExitStack() as stack:
        ports = unused_tcp_port_factory
        yield Reader(tmp_path, ports(), ports(), stack)  # type: ignore[operator]


async def test_steps_1_to_5(reader: Reader) -> None:
    """With the embedded broker, which starts once."""
    first, second, third, fourth, fifth = [Step(number) for number in range(1, 6)]
    for step in (first, second, third, fourth, fifth):
        reader.save(step)

    install, broker = first.shell[0].splitlines()
    assert install.startswith("pip install ")
    await reader.start_broker(broker)
    await _first(reader, first)
    _second(reader, second)
    await _third(reader, third)
    _fourth(reader, fourth)
    _fifth(reader, fifth)


async def _first(reader: Reader, step: Step) -> None:
    """All three records are printed, those of a key in order."""
    _, start, produce = step.shell
    consumer = await reader.start(start)
    reader.run(produce)
    seen = [await consumer.line(_DEADLINE) for _ in range(3)]
    shown = step.printed[0].splitlines()
    assert sorted(seen) == sorted(shown)
    assert [line for line in seen if "anna" in line] == [line for line in shown if "anna" in line]
    await reader.end(consumer)


def _second(reader: Reader, step: Step) -> None:
    """All records, in order, in much less time than one after the other."""
    produce, start = step.shell
    reader.run(produce)
    *lines, count, order = reader.run(start).splitlines()
    assert any(re.fullmatch(r"\d+ in flight, \d+ done, lag \d+", line) for line in lines)
    found = re.fullmatch(r"(\d+) records in (\d+) s", count)
    assert found is not None
    assert int(found[1]) == 1_003
    assert int(found[2]) < 50
    assert order == step.printed[0].splitlines()[-1] == "in order: True"


async def _third(reader: Reader, step: Step) -> None:
    """The lamp becomes a dead letter, and is sold after its replay."""
    start, produce, look, repair = step.shell
    catalogue, start = start.splitlines()
    reader.run(catalogue)
    consumer = await reader.start(start)
    reader.run(produce)
    assert await consumer.line(_DEADLINE) == "sold pen"
    await until(lambda: "it becomes a dead letter" in consumer.log.read_text(), what=consumer.log.read_text)
    for line in step.printed[0].splitlines():
        if line != "...":
            pattern = re.sub(r"sales\\-\d", r"sales-\\d", re.escape(line)).replace(r"0\.21", r"0\.\d+")
            assert re.search(pattern, consumer.log.read_text()), (pattern, consumer.log.read_text())
    await until(lambda: "no such product: lamp" in reader.run(look))
    assert "Traceback" in reader.run(look)
    left = reader.run(repair)
    assert "1 open letter" not in left.splitlines()[-1]
    assert await consumer.line(_DEADLINE) == "sold lamp"
    await reader.end(consumer)


def _fourth(reader: Reader, step: Step) -> None:
    """Invoices of anna, in the order of her orders."""
    [commands] = step.shell
    printed = reader.run(commands)
    assert "invoice for pen" in printed
    assert printed.index("invoice for pen") < printed.index("invoice for paper")


def _fifth(reader: Reader, step: Step) -> None:
    """The kill loses nothing, and little runs again, though the committed offset of a partition stays at 0."""
    kill, count = step.shell
    reader.run(kill)
    found = re.fullmatch(r"(\d+) records, (\d+) of them again\n", reader.run(count))
    assert found is not None
    assert step.printed[0].startswith(f"{found[1]} records, ")
    assert int(found[1]) == 1_003
    assert int(found[2]) < 200


@pytest.mark.real
async def test_step_6(reader: Reader) -> None:
    """On Apache Kafka: each record has one invoice, though the service is killed; and the probes answer."""
    step = Step(6)
    reader.save(step)
    broker, produce, kill, probes, count = step.shell
    await reader.start_broker(broker)
    reader.run(produce)
    kill, _, again = kill.strip().rpartition("\n")
    reader.run(kill)
    service = await reader.start(again)
    for probe in probes.splitlines():
        await until(lambda probe=probe: '"live":true' in reader.run(f"{probe} || true"))  # type: ignore[misc]
    number, repeated = count.splitlines()
    await until(lambda: int(reader.run(number)) >= 2_000, what=lambda: reader.run(number))
    assert [int(reader.run(number)), int(reader.run(repeated))] == [int(text) for text in step.printed[0].split()]
    await reader.end(service)
