"""``aioparallel broker``: for people who try things out."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aioparallel.clients.aiokafka import AiokafkaClient

COMMAND = [str(Path(sys.executable).with_name("aioparallel")), "broker"]
DEADLINE = 120.0


@contextmanager
def running(*options: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The command, and what it said up to the line to copy."""
    with subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said: list[str] = []
            while not said or not said[-1].startswith("aioparallel consume "):
                line = process.stdout.readline()
                assert line, said
                said.append(line.strip())
            yield process, said
        finally:
            process.kill()


async def partitions(servers: str, *topics: str) -> dict[str, int]:
    """How many each topic has."""
    client = AiokafkaClient(servers, "somebody")
    await client.start(30.0)
    try:
        found = await client.partitions(topics, 30.0)
        return {topic: sum(one.topic == topic for one in found) for topic in topics}
    finally:
        await client.stop(5.0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_tells_where_it_is_until_a_signal(number: signal.Signals, unused_tcp_port: int) -> None:
    """Its address in words and as a line to copy, its topics as asked for; a signal ends it with exit code 0."""
    servers = f"localhost:{unused_tcp_port}"
    options = ("--topic", "orders:8", "--topic", "orders.dlq", "--port", str(unused_tcp_port))
    with running(*options) as (process, said):
        assert said[0].startswith(
            f"The embedded broker runs at {servers}, with orders (8 partitions), orders.dlq (1 partition)."
        )
        assert f"export AIOPARALLEL_BOOTSTRAP_SERVERS={servers}" in said
        assert "echo 'a key:a value' | aioparallel produce orders --key-separator :" in said
        assert await partitions(servers, "orders", "orders.dlq") == {"orders": 8, "orders.dlq": 1}
        process.send_signal(number)
        assert process.wait(DEADLINE) == 0


async def test_a_port_in_use_and_a_free_one(unused_tcp_port: int) -> None:
    """A port in use is named; with --port 0 the broker takes a free one."""
    with running("--port", str(unused_tcp_port)):
        command = [*COMMAND, "--port", str(unused_tcp_port)]
        ran = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=DEADLINE, check=False
        )
        assert ran.returncode == 1
        assert f"port {unused_tcp_port}: " in ran.stderr
        assert "--port chooses another one, --port 0 a free one" in " ".join(ran.stderr.split())
        with running("--port", "0", "--topic", "orders:2") as (_, said):
            (export,) = (line for line in said if line.startswith("export "))
            assert await partitions(export.partition("=")[2], "orders") == {"orders": 2}


@pytest.mark.real
async def test_kafka(unused_tcp_port: int) -> None:
    """Apache Kafka instead, where it was asked to listen."""
    with running("--kafka", "--port", str(unused_tcp_port), "--topic", "orders:2") as (process, said):
        assert f"export AIOPARALLEL_BOOTSTRAP_SERVERS=127.0.0.1:{unused_tcp_port}" in said
        assert await partitions(f"127.0.0.1:{unused_tcp_port}", "orders") == {"orders": 2}
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--topic", "orders:many"], "must be name or name:partitions, as in orders:8"),
        (["--topic", "orders:0"], "must be name or name:partitions, as in orders:8"),
        (["--topic", ":8"], "must be name or name:partitions, as in orders:8"),
        (["--port", "70000"], "Must be < 65536"),
    ],
)
def test_wrong_options_are_refused(options: list[str], sentence: str) -> None:
    """With a sentence, before anything is started."""
    ran = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert ran.returncode == 2
    assert sentence in " ".join((ran.stdout + ran.stderr).split())
    assert "Traceback" not in ran.stdout + ran.stderr
