"""Share groups as tables and JSON, and what a reset would do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from rich.console import Console, RenderableType

from aioparallel.cli.cluster import Cluster
from aioparallel.cli.share.commands import Limits, Resetting, parse_target
from aioparallel.cli.share.printing import list_table, objects, shown
from aioparallel.cli.share.reading import Connected, GroupView, PartitionView
from aioparallel.cli.share.resetting import Move, _members_text
from aioparallel.cli.share.showing import exit_code, list_groups
from aioparallel.clients.aiokafka.share_admin import ShareGroup, ShareMember, ShareOffset
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition

FIRST, SECOND = TopicPartition("jobs", 0), TopicPartition("jobs", 1)
MEMBERS = (
    ShareMember("a1", "billing", "10.0.0.7", ("jobs",), (FIRST, SECOND)),
    ShareMember("b2", "billing\x1b[31m", "10.0.0.8", ("jobs",), (FIRST,)),
)
CONFIGS = {
    "share.delivery.count.limit": "5",
    "share.record.lock.duration.ms": "30000",
    "share.renew.acknowledge.enable": "false",
    "errors.deadletterqueue.topic.name": "",
    "errors.deadletterqueue.copy.record.enable": "false",
    "consumer.session.timeout.ms": "45000",
}


def view(
    partitions: Sequence[PartitionView] | None = None,
    configs: Mapping[str, str] = CONFIGS,
    members: tuple[ShareMember, ...] = MEMBERS,
) -> GroupView:
    """Two members; nothing is known of the second partition yet."""
    if partitions is None:
        partitions = [
            PartitionView(FIRST, ShareOffset(1_000, 234), 0, 1_300, MEMBERS),
            PartitionView(SECOND, ShareOffset(None, None), 0, 7, MEMBERS[:1]),
        ]
    return GroupView(ShareGroup("workers", "Stable", "simple", members), partitions, configs)


def printed(what: RenderableType) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(what, highlight=False, markup=False)
    return capture.get()


async def test_a_group_that_is_deleted_while_groups_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is left out."""

    class Admin:
        async def share_groups(self) -> list[str]:
            return ["gone", "workers"]

        async def describe(self, name: str) -> ShareGroup | None:
            return None if name == "gone" else ShareGroup(name, "Empty", "simple", ())

        async def offsets(self, name: str) -> dict[TopicPartition, ShareOffset]:
            return {}

        async def group_configs(self, name: str, *, only_set: bool = False) -> dict[str, str]:
            return {}

    @asynccontextmanager
    async def connected(where: Cluster) -> AsyncIterator[Connected]:
        admin: Any = Admin()
        yield Connected(admin, cast("Any", None), "localhost:9092")

    monkeypatch.setattr("aioparallel.cli.share.showing.connected", connected)
    await list_groups(Cluster(), as_json=True)
    assert [json.loads(line)["group"] for line in capsys.readouterr().out.splitlines()] == ["workers"]


def test_the_group_its_configuration_its_members_and_its_partitions() -> None:
    """An unknown lag is not counted as none; the brokers' dead letters are shown if they are on."""
    text = printed(shown(view()))
    assert "workers: Stable, share group, 2 members; lag 234, and unknown in 1 partition" in text
    assert "  deliveries of a record at most: 5\n  lock of a record: 30 s\n  locks can be renewed: no\n" in text
    assert "dead letters" not in text
    assert "  billing at 10.0.0.7, a1: jobs:0, jobs:1\n" in text
    assert "billing\\x1b[31m at 10.0.0.8, b2: jobs:0" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("jobs:")]
    assert rows == [["jobs:0", "1,000", "1,300", "234", "2"], ["jobs:1", "-", "7", "-", "1"]]
    assert "They count once a record of the partition has ended" in text
    assert "share group, 2 members; lag unknown\n" in printed(
        shown(view([PartitionView(SECOND, ShareOffset(None, None), 0, 7, MEMBERS)]))
    )
    text = printed(shown(view(configs={**CONFIGS, "errors.deadletterqueue.topic.name": "dlq.jobs"})))
    assert "  the brokers' dead letters go to: dlq.jobs\n  with key and value: no\n" in text


def test_a_group_that_has_read_nothing() -> None:
    """No table; without a record in the log the lag is known."""
    text = printed(shown(view([], {}, ())))
    assert "workers: Stable, share group, 0 members; lag 0" in text
    assert "It has read nothing yet." in text
    empty = view([PartitionView(FIRST, ShareOffset(None, None), 5, 5, ())])
    assert (empty.lag, empty.unknown) == (0, 0)
    assert "They count" not in printed(shown(empty))


def test_a_group_that_is_only_configured() -> None:
    """No member has joined it."""
    text = printed(shown(GroupView(ShareGroup("workers", "Dead", "", ()), (), CONFIGS)))
    assert "deliveries of a record at most: 5" in text
    assert "No member has joined it yet: there is its configuration only." in text


def test_the_list() -> None:
    """A row for each group."""
    rows = [line.split() for line in printed(list_table([view(), view([], {}, ())])).splitlines()]
    assert rows[1] == ["workers", "Stable", "2", "jobs", "234,", "and", "unknown", "in", "1", "partition"]
    assert rows[2] == ["workers", "Stable", "0", "-", "0"]


def test_objects_for_scripts() -> None:
    """Unknown is null; configs are those of share groups."""
    group, first, second = objects(view())
    assert (group["lag"], group["topics"], group["type"]) == (None, ["jobs"], "share")
    assert set(group["configs"] if isinstance(group["configs"], dict) else ()) == CONFIGS.keys() - {
        "consumer.session.timeout.ms"
    }
    assert (first["start_offset"], first["end"], first["lag"], first["members"]) == (1_000, 1_300, 234, ["a1", "b2"])
    assert (second["start_offset"], second["lag"]) == (None, None)
    assert len(list(objects(view(), with_partitions=False))) == 1


def test_a_limit_of_the_lag(capsys: pytest.CaptureFixture[str]) -> None:
    """4 if what is known exceeds it, 1 if it is unknown whether it does; a line says which."""
    known = view([PartitionView(FIRST, ShareOffset(1_000, 234), 0, 1_300, MEMBERS)])
    assert [exit_code(known, Limits(max_lag=most)) for most in (None, 234, 233)] == [0, 0, 4]
    assert "The lag is 234, more than --max-lag=233." in capsys.readouterr().err
    assert [exit_code(view(), Limits(max_lag=most)) for most in (None, 1_000, 7)] == [0, 1, 4]
    said = capsys.readouterr().err
    assert "The lag of jobs-1 is unknown, so it is unknown whether it is more than --max-lag=1,000." in said
    assert "The lag is at least 234, more than --max-lag=7." in said


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (ShareOffset(10, 90), 0, "jobs:0: offset 10 -> offset 0: 100 offsets to read"),
        (ShareOffset(10, 90), 100, "jobs:0: offset 10 -> offset 100: 0 offsets to read, at most 90 offsets skipped"),
        (ShareOffset(10, 3), 99, "jobs:0: offset 10 -> offset 99: 1 offset to read, at most 3 offsets skipped"),
        (ShareOffset(10, None), 15, "jobs:0: offset 10 -> offset 15: 85 offsets to read, at most 5 offsets skipped"),
        (ShareOffset(10, 0), 100, "jobs:0: offset 10 -> offset 100: 0 offsets to read"),
        (ShareOffset(None, None), 100, "jobs:0: nothing read -> offset 100: 0 offsets to read"),
    ],
)
def test_what_a_reset_would_do(before: ShareOffset, after: int, text: str) -> None:
    """What is not done yet and would be passed over is counted: never more than the lag."""
    assert str(Move(FIRST, before, after, 100)) == text


def test_members_of_one_name_are_counted() -> None:
    """In the refusal of a reset."""
    group = ShareGroup("workers", "Stable", "simple", (MEMBERS[0], MEMBERS[0]._replace(member_id="c3"), MEMBERS[1]))
    text = _members_text(group)
    assert "'workers' has 3 members: billing at 10.0.0.7 (2 times), billing" in text


def test_where_to_start() -> None:
    """Two words, a duration ago, a time; a partition needs its topic."""
    assert (parse_target("earliest"), parse_target("latest")) == ("earliest", "latest")
    assert parse_target("2026-03-01T14:30:00Z") == 1772375400.0
    with pytest.raises(ConfigurationError, match="must be earliest, latest, a duration ago"):
        parse_target("Latest")
    with pytest.raises(ConfigurationError, match="needs exactly one --topic"):
        Resetting(partition=(1,))
    with pytest.raises(ConfigurationError, match="must be given"):
        Resetting().target()
    one = Resetting(to="latest", topic=("jobs",), partition=(1,))
    assert (one.includes(FIRST), one.includes(SECOND)) == (False, True)
