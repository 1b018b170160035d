"""``aioparallel dlq`` on Apache Kafka."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest
from aiokafka import AIOKafkaConsumer, OffsetAndMetadata, TopicPartition

from aioparallel import ParallelConsumer, Record, RetryLater
from aioparallel.testing import LocalKafka
from tests.support.waiting import until

from .dead_letters import Letters, Sent

pytestmark = pytest.mark.real

COMMAND = "from aioparallel.cli import main; main()"


def test_list_and_show(local_kafka: LocalKafka) -> None:
    """list has a line for each letter and the counts below; show has everything of the newest."""
    letters = Letters(local_kafka, partitions=2)
    letters.write(
        Sent(partition=1, error="builtins.KeyError", message="first\nline", seconds_ago=10_800),
        Sent(b'{"order": 7, "name": "J\xc3\xb6rg"}', error="app.errors.Refused", message="the \x1b[31mlast"),
    )
    letters.write_stranger()
    output, said = letters.run("list")
    lines = output.splitlines()
    assert "KeyError" in lines[1]
    assert "3 h ago" in lines[1]
    assert f"{letters.name}-0@0" in lines[1]
    assert "first line" in lines[1]
    assert "Refused" in lines[2]
    assert f"{letters.topic}: 2 open letters (1 app.errors.Refused, 1 builtins.KeyError)" in output
    assert "1 record is no letter; --all shows them." in output
    assert "no letter" in letters.run("list", "--all")[0].splitlines()[3]
    assert "\x1b" not in output
    shown, _ = letters.run("show")
    for part in (
        f"{letters.topic}, partition 0, offset 0: open",
        f"{letters.name}, partition 0, offset 1",
        "3 in group billing",
        "app.errors.Refused: the \\x1b[31mlast",
        "Traceback: here",
        "trace: abc",
        '"name": "Jörg"',
    ):
        assert part in shown
    assert said == ""


def test_json(local_kafka: LocalKafka) -> None:
    """With --json there is one object a line: list without, show with the value and the traceback."""
    letters = Letters(local_kafka)
    letters.write(Sent(b"\xff\x00", b"k", origin=("else", 3, 17)))
    (listed,) = letters.objects("list")
    assert listed["origin"]["topic"] == "else"
    assert (listed["origin"]["partition"], listed["origin"]["offset"]) == (3, 17)
    assert listed["error"] == {"type": "ValueError", "message": "no such order"}
    assert listed["state"] == "open"
    assert "value" not in listed
    (shown,) = letters.objects("show")
    assert shown["value"] == {"base64": "/wA="}
    assert shown["headers"] == [["trace", "abc"]]
    assert shown["traceback"] == "Traceback: here\n"


def test_raw_value(local_kafka: LocalKafka) -> None:
    """--raw writes the value's bytes and nothing else, and refuses several letters."""
    letters = Letters(local_kafka)
    letters.write(Sent(b"\xff\x00raw\n"), Sent(b"other"))
    command = [sys.executable, "-c", COMMAND, "dlq", "show", letters.topic, "--raw"]
    environment = {**os.environ, "AIOPARALLEL_BOOTSTRAP_SERVERS": local_kafka.bootstrap_servers}
    ran = subprocess.run([*command, "--limit", "1"], capture_output=True, env=environment, timeout=120, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"\xff\x00raw\n", b"")
    output, said = letters.run("show", "--raw", "--error", "ValueError", code=2)
    assert output == ""
    assert "select exactly one" in said


def test_replay_once(local_kafka: LocalKafka) -> None:
    """Replay sends letters as they were to where they came from, in their order; a second one sends nothing."""
    letters = Letters(local_kafka, partitions=2)
    letters.write(*[Sent(b"%d" % n, b"one", partition=n % 2) for n in range(10)], Sent(None, b"one"))
    _, said = letters.run("replay", "--yes")
    assert "Replayed 11, failed 0, skipped 0 already settled." in said
    records = letters.read()
    assert len({record.partition for record in records}) == 1
    assert sorted(record.value or b"" for record in records) == sorted([*(b"%d" % n for n in range(10)), b""])
    # The two partitions may come in any order; within each, its own order holds.
    assert [r.value for r in records if r.value and int(r.value) % 2 == 0] == [b"0", b"2", b"4", b"6", b"8"]
    assert records[0].key == b"one"
    assert records[0].headers[0] == ("trace", b"abc")
    assert [name for name, _ in records[0].headers] == ["trace", "aioparallel.replayed.origin"]
    assert letters.listed() == []
    _, said = letters.run("replay", "--yes")
    assert "Nothing to replay: no open letter, skipped 11 already settled." in said
    assert len(letters.read()) == 11
    assert letters.committed() == {0: (6, ""), 1: (5, "")}


def test_new_letters_after_a_replay_are_open(local_kafka: LocalKafka) -> None:
    """A letter that comes after a replay is open, and only it is sent."""
    letters = Letters(local_kafka)
    letters.write(Sent(b"a"))
    letters.run("replay", "--yes")
    letters.write(Sent(b"b"))
    assert letters.listed() == [(0, 1)]
    letters.run("replay", "--yes")
    assert [record.value for record in letters.read()] == [b"a", b"b"]


SELECTIONS = {
    "partition": (["--partition", "1"], [3]),
    "offset": (["--partition", "0", "--offset", "1"], [1]),
    "offsets": (["--partition", "0", "--offsets", "1-2"], [1, 2]),
    "origin topic": (["--origin", "payments"], [2]),
    "origin partition": (["--origin", "payments:4"], [2]),
    "origin offset": (["--origin", "payments:4:5"], []),
    "error": (["--error", "Refused"], [1]),
    "error with module": (["--error", "app.Refused"], [1]),
    "since": (["--since", "2h"], [2, 3]),
    "until": (["--until", "2h"], [0, 1]),
    "key": (["--key", "four"], [3]),
    "limit": (["--limit", "2"], [0, 1]),
    "newest": (["--newest", "2"], [2, 3]),
    "two at once": (["--partition", "0", "--until", "2h", "--newest", "1"], [1]),
}


@pytest.fixture(scope="module")
def mixed(local_kafka: LocalKafka) -> Letters:
    """Four letters that differ in all that can be asked for; nothing here settles one."""
    letters = Letters(local_kafka, partitions=2)
    letters.write(
        Sent(seconds_ago=5 * 86_400),
        Sent(error="app.Refused", seconds_ago=86_400),
        Sent(origin=("payments", 4, 9), seconds_ago=3_600),
        Sent(partition=1, key=b"four", seconds_ago=60),
    )
    return letters


@pytest.mark.parametrize("name", SELECTIONS)
def test_each_selection(mixed: Letters, name: str) -> None:
    """Each criterion chooses its letters, for list and for replay alike."""
    options, chosen = SELECTIONS[name]
    places = [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert sorted(mixed.listed(*options)) == [places[number] for number in chosen]
    output, said = mixed.run("replay", "--dry-run", *options)
    assert len(output.splitlines()) == len(chosen)
    assert f"Would replay {len(chosen)} letter" in said


def test_iso_times(mixed: Letters) -> None:
    """--since takes a date; without a zone it is local time, with one it is that."""
    day = datetime.fromtimestamp(time.time() - 2 * 86_400).astimezone().strftime("%Y-%m-%d")
    assert sorted(mixed.listed("--since", day)) == [(0, 1), (0, 2), (1, 0)]
    hours = datetime.fromtimestamp(time.time() - 7200, UTC).isoformat()
    assert sorted(mixed.listed("--since", hours)) == [(0, 2), (1, 0)]


def test_dry_run_changes_nothing(local_kafka: LocalKafka) -> None:
    """A dry run of replay and of drop names each letter, sends nothing and commits nothing."""
    letters = Letters(local_kafka)
    letters.write(Sent(), Sent())
    output, said = letters.run("replay", "--dry-run")
    assert f"{letters.topic}-0@1 (ValueError, from {letters.name}-0@1) would be sent to {letters.name}" in output
    assert "Nothing was done" in said
    output, said = letters.run("drop", "--dry-run", "--delete")
    assert f"{letters.topic}-0@0 (ValueError, from {letters.name}-0@0) would be dropped" in output
    assert "offsets 0 to 1 would be deleted" in said
    assert letters.committed() == {}
    assert letters.read() == []
    assert len(letters.listed()) == 2


def test_drop_in_the_middle_is_kept_over_restarts(local_kafka: LocalKafka) -> None:
    """Letters settled here and there stay settled over several commands, and list --all marks them."""
    letters = Letters(local_kafka)
    letters.write(*[Sent(b"%d" % n) for n in range(8)])
    letters.run("drop", "--partition", "0", "--offsets", "2-3", "--yes")
    offset, metadata = letters.committed()[0]
    assert offset == 0
    assert metadata
    letters.run("replay", "--partition", "0", "--offset", "6", "--yes")
    assert [offset for _, offset in letters.listed()] == [0, 1, 4, 5, 7]
    states = {one["offset"]: one["state"] for one in letters.objects("list", "--all")}
    assert [offset for offset, state in states.items() if state == "settled"] == [2, 3, 6]
    _, said = letters.run("show", "--partition", "0", "--offset", "2")
    assert "no open letter matches; --all includes settled ones" in said
    assert "offset 2: settled" in letters.run("show", "--partition", "0", "--offset", "2", "--all")[0]
    _, said = letters.run("replay", "--yes")
    assert "Replayed 5, failed 0, skipped 3 already settled." in said
    assert [record.value for record in letters.read()] == [b"6", b"0", b"1", b"4", b"5", b"7"]
    assert letters.committed() == {0: (8, "")}


def test_drop_and_delete(local_kafka: LocalKafka) -> None:
    """--delete takes what stands before the first open letter out of the log, and says how much."""
    letters = Letters(local_kafka)
    letters.write(*[Sent() for _ in range(6)])
    _, said = letters.run("drop", "--limit", "4", "--delete", "--yes")
    assert "Dropped 4 letters" in said
    assert f"{letters.topic}-0: offsets 0 to 3 are deleted (4 offsets); it begins at 4." in said
    assert letters.listed("--all") == [(0, 4), (0, 5)]
    _, said = letters.run("drop", "--partition", "0", "--offset", "5", "--delete", "--yes")
    assert "Nothing to delete" in said
    _, said = letters.run("replay", "--yes")
    assert "Replayed 1, failed 0, skipped 1 already settled." in said


def test_delete_without_open_letters(local_kafka: LocalKafka) -> None:
    """After a replay of everything, drop --delete empties the topic, and later letters are open."""
    letters = Letters(local_kafka)
    letters.write(Sent(), Sent())
    letters.run("replay", "--yes")
    _, said = letters.run("drop", "--delete", "--yes")
    assert "Dropped 0 letters" in said
    assert "offsets 0 to 1 are deleted" in said
    letters.write(Sent())
    assert letters.listed() == [(0, 2)]


def test_delete_in_a_compacted_topic(local_kafka: LocalKafka) -> None:
    """Where Kafka deletes no records the command says so, and the letters are dropped all the same."""
    letters = Letters(local_kafka)
    asyncio.run(local_kafka.create_topic(f"{letters.name}.compact", 1, {"cleanup.policy": "compact"}))
    letters.topic = f"{letters.name}.compact"
    letters.write(Sent())
    _, said = letters.run("drop", "--delete", "--yes", code=1)
    assert "cleanup.policy does not contain delete" in said
    assert letters.listed() == []


def test_other_topic_same_partition_and_no_mark(local_kafka: LocalKafka) -> None:
    """--to sends elsewhere, --same-partition to the origin's number, --no-mark leaves the letters open."""
    letters = Letters(local_kafka)
    other = f"{letters.name}.repair"
    asyncio.run(local_kafka.create_topic(other, 2))
    letters.write(*[Sent(b"%d" % n, origin=(letters.name, n % 2, n)) for n in range(4)])
    letters.run("replay", "--to", other, "--same-partition", "--no-mark", "--yes")
    assert [(record.partition, record.value) for record in letters.read(other)] == [
        (0, b"0"),
        (0, b"2"),
        (1, b"1"),
        (1, b"3"),
    ]
    assert letters.read() == []
    assert letters.committed() == {}
    assert len(letters.listed()) == 4


def test_failed_letters_stay_open(local_kafka: LocalKafka) -> None:
    """A letter whose origin is gone fails by itself, with the reason and exit code 1, and stays open."""
    letters = Letters(local_kafka)
    letters.write(Sent(b"0"), Sent(b"1", origin=("never-there", 0, 0)), Sent(b"2"))
    _, said = letters.run("replay", "--yes", code=1)
    assert "Replayed 2, failed 1" in said
    assert "topic never-there does not exist" in said
    assert letters.listed() == [(0, 1)]
    letters.run("replay", "--same-partition", "--to", letters.name, "--yes")
    assert [record.value for record in letters.read() if record.partition == 0][-1] == b"1"


def test_aborted_transactions_do_not_hang_it(local_kafka: LocalKafka) -> None:
    """Aborted letters at the end of the log are neither listed nor waited for, and marks pass them."""
    letters = Letters(local_kafka)
    letters.write(Sent(b"real"))
    letters.write(*[Sent(b"aborted") for _ in range(20)], transaction="abort")
    assert letters.listed() == [(0, 0)]
    letters.run("replay", "--yes")
    assert [record.value for record in letters.read()] == [b"real"]
    assert letters.committed() == {0: (22, "")}
    assert letters.listed("--all") == [(0, 0)]


def test_group_with_members_is_refused_before_anything_is_sent(local_kafka: LocalKafka) -> None:
    """When somebody consumes in the group, replay sends nothing and says what to do."""
    letters = Letters(local_kafka)
    letters.write(Sent())

    async def with_member() -> str:
        consumer = AIOKafkaConsumer(
            letters.name, bootstrap_servers=local_kafka.bootstrap_servers, group_id=letters.group
        )
        await consumer.start()
        try:
            _, said = await asyncio.to_thread(letters.run, "replay", "--yes", code=1)
        finally:
            await consumer.stop()
        return said

    said = asyncio.run(with_member())
    assert "has other consumers as members" in said
    assert letters.read() == []


@pytest.mark.parametrize("reads", ["letters", "others"])
def test_group_with_members_of_the_new_protocol_is_refused(local_kafka: LocalKafka, reads: str) -> None:
    """The brokers let classic members into such a group, and assign to them by their own assignor: two commands would
    settle the same letters, and their marks would replace what a consumer of the letters has committed."""
    letters = Letters(local_kafka, partitions=2)
    letters.write(Sent(b"0"), Sent(b"1", partition=1))

    async def with_member() -> str:
        consumer = ParallelConsumer(
            letters.topic if reads == "letters" else letters.name,
            bootstrap_servers=local_kafka.bootstrap_servers,
            group_id=letters.group,
        )

        async def later(_: Record) -> None:
            raise RetryLater(60.0)

        async with consumer:
            running = asyncio.create_task(consumer.run(later))
            await until(lambda: consumer.health().joined, 30.0)
            _, said = await asyncio.to_thread(letters.run, "replay", "--yes", code=1)
            consumer.stop()
            await running
        return said

    said = asyncio.run(with_member())
    assert "has other consumers as members" in said
    assert letters.read() == []


def test_unreadable_marks(local_kafka: LocalKafka) -> None:
    """Text of another program in the group: list warns and shows all as open, replay refuses."""
    letters = Letters(local_kafka)
    letters.write(Sent())

    async def commit() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=local_kafka.bootstrap_servers, group_id=letters.group, enable_auto_commit=False
        )
        await consumer.start()
        try:
            consumer.assign([TopicPartition(letters.topic, 0)])
            await consumer.commit({TopicPartition(letters.topic, 0): OffsetAndMetadata(0, "what is this")})
        finally:
            await consumer.stop()

    asyncio.run(commit())
    output, said = letters.run("list")
    assert "1 open letter" in output
    assert "WARNING" in said
    _, said = letters.run("replay", "--yes", code=1)
    assert "Choose another --group" in said


@pytest.mark.slow
def test_marks_that_do_not_fit(local_kafka: LocalKafka) -> None:
    """Single letters picked out all over a partition: the marks do not fit, so nothing of it is sent."""
    letters = Letters(local_kafka, partitions=2)
    # A pattern without any order takes a bit for each letter at the least: 61,440 fit, about 80,000 do not.
    rng = random.Random(5)
    many = [Sent(b"", rng.choice([b"a", b"b"]), headers=(), message="") for _ in range(80_000)]
    letters.write(Sent(partition=1, key=b"a"), *many)
    _, said = letters.run("replay", "--key", "a", "--yes", code=1)
    assert "Replayed 1," in said
    assert "left alone" in said
    assert "--no-mark" in said
    assert len(letters.read()) == 1
    _, said = letters.run("drop", "--key", "a", "--limit", "20000", "--yes")
    assert "Dropped 20,000 letters" in said


def stopped_on_its_way(letters: Letters, how: signal.Signals) -> tuple[int, bytes]:
    """A replay that gets this signal after its first commit; its exit code and what it said."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "dlq", "replay", letters.topic, "--group", letters.group, "--yes"],
        stderr=subprocess.PIPE,
        env={**os.environ, "AIOPARALLEL_BOOTSTRAP_SERVERS": letters.broker.bootstrap_servers},
    )
    assert process.stderr is not None
    try:
        deadline = time.monotonic() + 120
        while not letters.committed().get(0, (0, ""))[0]:
            assert process.poll() is None
            assert time.monotonic() < deadline
        process.send_signal(how)
        _, said = process.communicate(timeout=120)
        return process.returncode, said
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_marks_what_was_sent(local_kafka: LocalKafka, how: signal.Signals) -> None:
    """After Ctrl-C or SIGTERM exactly what was sent is settled, and the next replay sends the rest once."""
    letters = Letters(local_kafka)
    letters.write(*[Sent(b"%d" % n, headers=(("pad", b"x" * 500),)) for n in range(20_000)])
    code, said = stopped_on_its_way(letters, how)
    assert code == 130, said
    assert b"Not sent, as it was interrupted" in said
    assert b"Traceback" not in said
    sent = len(letters.read())
    assert 0 < sent < 20_000
    assert len(letters.listed()) == 20_000 - sent
    letters.run("replay", "--yes")
    assert sorted(int(record.value) for record in letters.read()) == list(range(20_000))


@pytest.mark.slow
def test_killed_on_its_way(local_kafka: LocalKafka) -> None:
    """After SIGKILL the next replay loses nothing and repeats at most one portion of 500."""
    letters = Letters(local_kafka)
    letters.write(*[Sent(b"%d" % n, headers=(("pad", b"x" * 500),)) for n in range(20_000)])
    code, _ = stopped_on_its_way(letters, signal.SIGKILL)
    assert code == -signal.SIGKILL
    letters.run("replay", "--yes")
    found = [int(record.value) for record in letters.read()]
    assert set(found) == set(range(20_000))
    assert len(found) <= 20_500


def test_reader_that_has_seen_enough(local_kafka: LocalKafka) -> None:
    """A closed pipe, as behind `| head`, ends list without a word."""
    letters = Letters(local_kafka)
    letters.write(*[Sent(message="x" * 900) for _ in range(2_000)])
    environment = {**os.environ, "AIOPARALLEL_BOOTSTRAP_SERVERS": local_kafka.bootstrap_servers}
    command = [sys.executable, "-c", COMMAND, "dlq", "list", letters.topic, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"{")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


def test_missing_topic_and_partition(local_kafka: LocalKafka) -> None:
    """A topic that does not exist is one line and exit code 1, and is not created; a wrong partition is 2."""
    letters = Letters(local_kafka)
    _, said = letters.run("list", "--partition", "7", code=2)
    assert "--partition=7" in said
    letters.topic = "no-such-topic"
    for _ in range(2):
        _, said = letters.run("list", code=1)
        assert said.startswith("ERROR topic not found")
        assert len(said.splitlines()) == 1


def test_empty_topic(local_kafka: LocalKafka) -> None:
    """Without letters every command says so and succeeds."""
    letters = Letters(local_kafka)
    assert "0 open letters" in letters.run("list")[0]
    assert "no open letter matches" in letters.run("show")[1]
    assert "Nothing to replay" in letters.run("replay", "--yes")[1]
    assert "Dropped 0 letters" in letters.run("drop", "--yes")[1]


def test_client_options_from_the_environment(local_kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """AIOPARALLEL_CLIENT_OPTIONS takes several options, and a wrong one among them is named."""
    letters = Letters(local_kafka)
    letters.write(Sent())
    monkeypatch.setenv("AIOPARALLEL_CLIENT_OPTIONS", "client_id=ops request_timeout_ms=20000")
    assert letters.listed() == [(0, 0)]
    letters.run("replay", "--yes")
    monkeypatch.setenv("AIOPARALLEL_CLIENT_OPTIONS", "client_id=ops request_timeout_ms=never")
    assert "request_timeout_ms" in letters.run("list", code=2)[1]
