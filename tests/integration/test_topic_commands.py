"""``aioparallel topics``, ``produce`` and ``consume`` on Apache Kafka and on the embedded broker."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioparallel.testing import EmbeddedBroker, LocalKafka
from tests.support.command_line import Ran, invoke

pytestmark = pytest.mark.real

COMMAND = "from aioparallel.cli import main; main()"


@pytest.fixture
def servers(local_kafka: LocalKafka) -> Iterator[str]:
    """The address, which the commands take from the environment."""
    before = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS")
    os.environ["AIOPARALLEL_BOOTSTRAP_SERVERS"] = local_kafka.bootstrap_servers
    yield local_kafka.bootstrap_servers
    if before is None:
        del os.environ["AIOPARALLEL_BOOTSTRAP_SERVERS"]
    else:
        os.environ["AIOPARALLEL_BOOTSTRAP_SERVERS"] = before


def new_topic(partitions: int = 1) -> str:
    """A topic that the command has created."""
    name = f"commands-{uuid.uuid4().hex[:8]}"
    assert done(invoke("topics", "create", f"{name}:{partitions}"))
    return name


def done(ran: Ran) -> str:
    """The standard output of a command that has succeeded, or its messages if it has none."""
    assert ran.exit_code == 0, ran.output
    return ran.stdout or ran.stderr


def objects(*arguments: str) -> list[dict[str, object]]:
    """The lines that a command prints with ``--json``."""
    return [json.loads(line) for line in done(invoke(*arguments, "--json")).splitlines()]


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """The command as a process of its own, with pipes."""
    command = [sys.executable, "-c", COMMAND, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE)


def test_a_topic_from_its_creation_to_its_deletion(servers: str) -> None:
    """Created with configs, listed, described, deleted; each once."""
    name = f"commands-{uuid.uuid4().hex[:8]}"
    said = done(invoke("topics", "create", f"{name}:3:compact", "--config", "retention.ms=86400000"))
    assert f"Created {name} (3 partitions, compacted), 1 replica of each partition." in said
    again = invoke("topics", "create", name)
    assert again.exit_code == 2
    assert f"NAMES={name!r}: exists; --if-missing" in again.stderr
    assert "nothing was changed" in done(invoke("topics", "create", name, "--if-missing"))
    (listed,) = (one for one in objects("topics", "list") if one["topic"] == name)
    assert listed == {"topic": name, "partitions": 3, "offsets": 0}
    shown = done(invoke("topics", "describe", name))
    assert f"{name}: 3 partitions, 0 offsets" in shown
    assert "cleanup.policy=compact\nretention.ms=86400000\n" in shown
    assert "min.insync.replicas" not in shown
    assert [one["partition"] for one in objects("topics", "describe", name)] == [0, 1, 2]
    refused = invoke("topics", "delete", name)
    assert refused.exit_code == 2
    assert "--yes skips the question" in refused.stderr
    assert f"Deleted {name}." in done(invoke("topics", "delete", name, "--yes"))
    for gone in (invoke("topics", "delete", name, "--yes"), invoke("topics", "describe", name)):
        assert gone.exit_code == 1
        assert "topic not found" in gone.stderr


def test_lines_become_records_and_come_back(servers: str, tmp_path: Path) -> None:
    """Keys by separator and by field, headers, tombstones, line ends of Windows and a last line without an end."""
    topic = new_topic()
    file = tmp_path / "orders.txt"
    file.write_bytes(b"a:1\r\nb:x:y\n\xc3\xa9:\n:4")
    done(invoke("produce", topic, str(file), "--key-separator", ":", "--header", "from=here", "--empty-is-null"))
    file.write_text('{"customer": {"id": 17}}\n{"customer": {"id": "x"}}\n{"customer": {"id": null}}\n')
    said = done(invoke("produce", topic, str(file), "--key-field", "customer.id", "--compression", "zstd"))
    assert said == f"3 records written to {topic}.\n"
    found = objects("consume", topic)
    assert [(one["key"], one["value"]) for one in found] == [
        ("a", "1"),
        ("b", "x:y"),
        ("é", None),
        ("", "4"),
        ("17", '{"customer": {"id": 17}}'),
        ("x", '{"customer": {"id": "x"}}'),
        (None, '{"customer": {"id": null}}'),
    ]
    assert found[0]["headers"] == [["from", "here"]]
    assert found[0]["offset"] == 0
    assert done(invoke("consume", topic, "--offset", "1", "--partition", "0", "--limit", "1", "--values")) == "x:y\n"
    assert f"{topic}-0@6" in done(invoke("consume", topic, "--newest", "1"))
    assert [one["value"] for one in objects("consume", topic, "--all", "--key", "b")] == ["x:y"]
    assert [one["value"] for one in objects("consume", topic, "--key", "b")] == ["x:y"]
    assert len(objects("consume", topic, "--since", "1h")) == 7
    assert "No record matches." in done(invoke("consume", topic, "--key", "nobody"))


def test_many_records_of_several_partitions(servers: str, tmp_path: Path) -> None:
    """Each once; those of a key in order; the newest are the newest of all partitions."""
    topic, file = new_topic(4), tmp_path / "many.txt"
    file.write_text("".join(f"{number % 50}:{number}\n" for number in range(30_000)))
    assert f"30,000 records written to {topic}." in done(invoke("produce", topic, str(file), "--key-separator", ":"))
    values = done(invoke("consume", topic, "--all", "--values")).split()
    assert sorted(map(int, values)) == list(range(30_000))
    by_key: dict[int, list[int]] = {}
    for value in map(int, values):
        by_key.setdefault(value % 50, []).append(value)
    assert all(some == sorted(some) for some in by_key.values())
    assert [one["offsets"] for one in objects("topics", "list") if one["topic"] == topic] == [30_000]


def test_a_line_that_cannot_become_a_record(servers: str, tmp_path: Path) -> None:
    """It ends the command, which names the line; those before it are written. A record that the broker refuses stops no
    other one."""
    topic, file = new_topic(), tmp_path / "lines.txt"
    file.write_text("a:1\nnone\nc:3\n")
    ran = invoke("produce", topic, str(file), "--key-separator", ":")
    assert ran.exit_code == 2
    assert f"1 record written to {topic}." in ran.stderr
    assert f"--key-separator=':': not found in line 2 of {file}" in ran.stderr
    file.write_text(f"before\n{'x' * 2_000_000}\nbehind\n")
    ran = invoke("produce", topic, str(file))
    assert ran.exit_code == 1
    assert f"line 2 of {file} was not written" in ran.stderr
    assert f"2 records written to {topic}, 1 line not written." in ran.stderr
    assert done(invoke("consume", topic, "--values")) == "1\nbefore\nbehind\n"


def test_standard_input_and_following(servers: str) -> None:
    """What is typed is written and shown at once; Ctrl-C ends both, and what was read is written."""
    topic = new_topic()
    with start("consume", topic, "--follow", "--values") as following, start("produce", topic) as producing:
        assert producing.stdin is not None
        assert following.stdout is not None
        for value in (b"first\n", b"second\n"):
            producing.stdin.write(value)
            producing.stdin.flush()
            ready, _, _ = select.select([following.stdout], [], [], 30)
            assert ready, "nothing was shown within 30 s"
            assert following.stdout.readline() == value
        began = time.monotonic()
        for process in (producing, following):
            process.send_signal(signal.SIGINT)
        _, said = producing.communicate(timeout=30)
        assert producing.returncode == 130
        assert said.decode().endswith(f"2 records written to {topic}.\nStopped.\n")
        _, said = following.communicate(timeout=30)
        assert (following.returncode, said) == (130, b"Stopped.\n")
        assert time.monotonic() - began < 20


def test_nobody_there_and_wrong_names(servers: str) -> None:
    """A missing topic or partition is one sentence, and nothing is created."""
    name = f"nothing-{uuid.uuid4().hex[:8]}"
    for command in ("consume", "produce"):
        ran = invoke(command, name, *(["--offset", "0", "--partition", "0"] if command == "consume" else []))
        assert ran.exit_code == 1
        assert "topic not found" in ran.stderr
    topic = new_topic(2)
    for command in ("consume", "produce"):
        ran = invoke(command, topic, "--partition", "2")
        assert ran.exit_code == 2
        assert f"--partition=2: {topic} has the partitions 0 to 1" in ran.stderr
    ran = invoke("consume", topic, "--partition", "1", "--offset", "5")
    assert (ran.exit_code, "has the offsets 0 to 0" in ran.stderr) == (2, True)
    assert name not in {one["topic"] for one in objects("topics", "list")}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("produce", "t", "--key", "a", "--key-field", "b"), "--key-field='b': cannot be combined with --key"),
        (("produce", "t", "--key-separator", ""), "--key-separator='': must not be empty"),
        (("produce", "t", "--header", "x"), "--header='x': must be NAME=VALUE"),
        (("produce", "t", "no such file"), "must be a file that exists"),
        (("consume", "t", "--all", "--newest", "3"), "--all=True: cannot be combined with --newest"),
        (("consume", "t", "--offset", "3"), "--offset=3: needs exactly one --partition"),
        (("consume", "t", "--json", "--values"), "--values=True: cannot be combined with --json"),
        (("topics", "create", "a:b"), "must be name or name:partitions"),
        (("topics", "create", "a", "--config", "x"), "--config='x': must be NAME=VALUE"),
    ],
)
def test_wrong_use_is_named_before_anything_is_connected(arguments: tuple[str, ...], said: str) -> None:
    """The option as it is typed."""
    ran = invoke(*arguments, environment={"AIOPARALLEL_BOOTSTRAP_SERVERS": "localhost:1"})
    assert ran.exit_code == 2, ran.output
    assert said in ran.stderr


def test_the_embedded_broker_creates_no_topics_on_request() -> None:
    """It says how to get one, at once."""
    with EmbeddedBroker() as broker:
        ran = invoke("topics", "create", "a", environment={"AIOPARALLEL_BOOTSTRAP_SERVERS": broker.bootstrap_servers})
    assert ran.exit_code == 1
    assert "its --topic NAME:PARTITIONS names" in ran.stderr


def without_leader(broker: EmbeddedBroker, topic: str, partition: int) -> None:
    """Take the leader of a partition away."""
    cluster = broker._running()
    lose = cluster._library.rd_kafka_mock_partition_set_leader
    lose.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32]
    assert lose(cluster._cluster, topic.encode(), partition, -1) == 0


async def test_a_partition_without_a_leader_is_shown_with_the_others() -> None:
    """Nobody can be asked about its log: it does not hold up ``list`` and ``describe``, which are there to find it."""
    with EmbeddedBroker() as broker:
        await broker.create_topic("t", 2)
        without_leader(broker, "t", 1)
        there = {"AIOPARALLEL_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
        began = time.monotonic()
        listed = await asyncio.to_thread(invoke, "topics", "list", "--json", environment=there)
        described = await asyncio.to_thread(invoke, "topics", "describe", "t", "--json", environment=there)
        assert time.monotonic() - began < 20
    assert json.loads(done(listed)) == {"topic": "t", "partitions": 2, "offsets": 0}
    assert "WARNING 1 partition without a leader: the offsets of t-1 are not counted" in listed.stderr
    ends = [(one["leader"], one["next_offset"]) for one in map(json.loads, done(described).splitlines())]
    assert ends == [(1, 0), (-1, None)]


def test_describing_a_missing_topic_does_not_create_it() -> None:
    """Brokers create topics that a client asks for, unless auto.create.topics.enable=false; the embedded one always."""
    with EmbeddedBroker() as broker:
        there = {"AIOPARALLEL_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
        ran = invoke("topics", "describe", "mistyped", environment=there)
        assert ran.exit_code == 1
        assert "topic not found" in ran.stderr
        assert "mistyped" not in invoke("topics", "list", "--json", environment=there).stdout
