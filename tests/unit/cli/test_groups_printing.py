"""Groups as tables and JSON, exit codes, and the answers of ``groups serve``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

import httpx
import pytest
from rich.console import Console

from aioparallel.cli.groups import serving
from aioparallel.cli.groups.commands import GroupAccess, Limits, Serving, Showing
from aioparallel.cli.groups.printing import letters_for, list_table, objects, shown
from aioparallel.cli.groups.reading import GroupView, PartitionView, Sampled, group_not_found
from aioparallel.cli.groups.sampling import spans_for
from aioparallel.cli.groups.serving import Figures, Served, answer, server_of
from aioparallel.cli.groups.showing import EXCEEDED, UNKNOWN, OpenRecords, exit_code, is_stuck
from aioparallel.cli.groups.strip import ASCII, BLOCKS
from aioparallel.cli.groups.work import work_of
from aioparallel.cli.kmq.status import PartitionStatus
from aioparallel.cli.share.reading import GroupView as ShareView
from aioparallel.cli.share.reading import PartitionView as SharePartitionView
from aioparallel.clients.aiokafka.group_admin import GroupMember, GroupState
from aioparallel.clients.aiokafka.share_admin import ShareGroup, ShareMember, ShareOffset
from aioparallel.group.client import Committed, Span
from aioparallel.offsets import encode_offset_map
from aioparallel.records.errors import ClientError, ConfigurationError
from aioparallel.records.record import TopicPartition
from tests.support.command_line import invoke

NOW = 1_800_000_000.0
FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
MEMBER = GroupMember("billing-1", "pod-1", "billing", "10.0.0.7", (FIRST,))
STATE = GroupState("Stable", "classic", (MEMBER,))
MAP = encode_offset_map(37, 1_999, [37, 1_200])


def group() -> GroupView:
    """Two records of the first partition are left, one of them for ten minutes; all three of the second."""
    first = PartitionView(
        work_of(FIRST, Committed(37, MAP), 0, 2_000), MEMBER, sampled=Sampled(NOW - 600, has_gaps=False)
    )
    second = PartitionView(work_of(SECOND, None, 0, 3), None, sampled=Sampled(NOW - 5, has_gaps=True))
    return GroupView("billing", STATE, [first, second])


def printed(view: GroupView, partitions: Sequence[PartitionView]) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(shown(view, partitions, NOW, 4_096, 60, ASCII))
    return capture.get()


@pytest.mark.parametrize(
    ("metadata", "said"),
    [("aioparallel.spark query 1", "no map: progress of Spark"), ("of another client", "no map: other text")],
)
def test_a_commit_without_a_map_says_whose_it_is(metadata: str, said: str) -> None:
    """As far as it is known."""
    view = PartitionView(work_of(FIRST, Committed(37, metadata), 0, 2_000), None)
    assert said in printed(GroupView("billing", STATE, [view]), [view])


def test_the_table_says_what_is_left() -> None:
    """Lag and remaining differ; an upper bound is marked; the strip is as wide as there is room."""
    text = printed(group(), group().partitions)
    assert "billing: Stable, classic, 1 member; lag 1,966, remaining <= 5" in text
    assert "billing at 10.0.0.7, static pod-1: orders:0" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("orders:")]
    assert rows[0][:8] == ["orders:0", "37", "2,000", "1,963", "2", "37,", "10", "min"]
    assert rows[1][:6] == ["orders:1", "-", "3", "3", "<=", "3"]
    (strip,) = [line for line in text.splitlines() if line.startswith("orders:0 37 |")]
    assert (strip[13], strip.count("+"), strip.endswith("| 1,999")) == ("+", 2, True)
    assert len(strip) <= 60
    assert "upper bound" in text


def test_who_gives_away_what() -> None:
    """In a group whose partitions the brokers assign, also in JSON."""
    gives = GroupMember("one", None, "billing", "10.0.0.7", (FIRST, SECOND), 4, (FIRST,), "consumer")
    waits = GroupMember("two", "pod-2", "billing", "10.0.0.8", (), 5, (SECOND,), "classic")
    state = GroupState("Reconciling", "consumer", (gives, waits), 6, 5, "uniform")
    view = GroupView("billing", state, [])
    assert printed(view, []).splitlines()[:4] == [
        "billing: Reconciling, consumer, 2 members; lag 0, remaining 0",
        "  group epoch 6, assignment epoch 5, assignor uniform",
        "  billing at 10.0.0.7, one, epoch 4: orders:0, orders:1; gives away orders:1; then has orders:0",
        "  billing at 10.0.0.8, static pod-2, two, epoch 5, of the classic protocol: no partitions; waits for "
        "orders:1; then has orders:1",
    ]
    (whole,) = objects(view, [], NOW, 4_096)
    assert (whole["group_epoch"], whole["assignment_epoch"], whole["assignor"]) == (6, 5, "uniform")
    assert whole["members"] == [
        {
            "member_id": "one",
            "instance_id": None,
            "client_id": "billing",
            "host": "10.0.0.7",
            "partitions": ["orders:0", "orders:1"],
            "protocol": "consumer",
            "epoch": 4,
            "target": ["orders:0"],
            "giving_away": ["orders:1"],
            "waiting_for": [],
        },
        {
            "member_id": "two",
            "instance_id": "pod-2",
            "client_id": "billing",
            "host": "10.0.0.8",
            "partitions": [],
            "protocol": "classic",
            "epoch": 5,
            "target": ["orders:1"],
            "giving_away": [],
            "waiting_for": ["orders:1"],
        },
    ]


def test_the_objects_of_json() -> None:
    """Names of fields are a public interface."""
    whole, first, second = objects(group(), group().partitions, NOW, 4_096)
    assert whole == {
        "kind": "group",
        "group": "billing",
        "state": "Stable",
        "type": "classic",
        "group_epoch": None,
        "assignment_epoch": None,
        "assignor": None,
        "members": [
            {
                "member_id": "billing-1",
                "instance_id": "pod-1",
                "client_id": "billing",
                "host": "10.0.0.7",
                "partitions": ["orders:0"],
                "protocol": None,
                "epoch": None,
                "target": None,
                "giving_away": None,
                "waiting_for": None,
            }
        ],
        "lag": 1_966,
        "remaining": 5,
        "remaining_is": "upper bound",
    }
    strip, at = first.pop("strip"), first.pop("oldest_timestamp")
    assert isinstance(strip, str)
    assert isinstance(at, str)
    assert (len(strip), strip.count("+"), strip.count("#")) == (64, 2, 62)
    assert first == {
        "kind": "partition",
        "group": "billing",
        "topic": "orders",
        "partition": 0,
        "committed": 37,
        "begin": 0,
        "end": 2_000,
        "lag": 1_963,
        "remaining": 2,
        "remaining_is": "exact",
        "incomplete": 2,
        "unread": 0,
        "highest_completed": 1_999,
        "oldest_offset": 37,
        "oldest_age": 600.0,
        "positions_in": "kafka",
        "map_format": "RunLength",
        "map_characters": len(MAP),
        "map_limit": 4_096,
        "map_share": round(len(MAP) / 4_096, 4),
        "map_problem": None,
        "open": None,
        "member": "billing-1",
    }
    assert second.keys() == {*first, "strip", "oldest_timestamp"}
    assert (second["committed"], second["unread"], second["map_format"], second["strip"]) == (None, 3, None, "")


def test_a_figure_is_exact_only_if_it_is_known() -> None:
    """Without a sample, or with gaps, it is an upper bound; counted records are exact, and nothing left is nothing."""
    view = group().partitions[0]
    assert view.is_exact
    assert not replace(view, sampled=None).is_exact
    assert not replace(view, sampled=Sampled(None, has_gaps=True)).is_exact
    counted = replace(view, sampled=Sampled(None, has_gaps=True, records=1))
    assert (counted.is_exact, counted.remaining) == (True, 1)
    assert PartitionView(work_of(FIRST, Committed(5, ""), 0, 5), None).is_exact


def test_open_records_of_a_queue_are_work() -> None:
    """They are added, and the oldest of them counts for the age."""
    status = PartitionStatus(0, open=4, oldest=900.0, overdue=0, redelivered=0, most=0, behind=None)
    view = replace(group().partitions[0], open=status, open_committed=4)
    assert (view.remaining, view.oldest_age(NOW)) == (6, 900.0)
    assert "6 (4 open)" in printed(group(), [view])


class _Markers:
    """The markers of a partition with these open offsets."""

    def __init__(self, *offsets: int) -> None:
        self._offsets = offsets

    async def update(self) -> list[PartitionStatus]:
        return [PartitionStatus(0, len(self._offsets), 1.0, 0, 0, 0, None)]

    def open_in(self, partition: int) -> tuple[int, ...]:
        assert partition == 0
        return self._offsets


async def test_an_open_record_counts_once() -> None:
    """One that was started after the last commit is incomplete by the commit already."""
    view = PartitionView(work_of(FIRST, Committed(5, ""), 0, 10), None)
    queues = OpenRecords({FIRST.topic: _Markers(1, 3, 5, 9)})  # type: ignore[dict-item]
    (found,) = await queues.added_to([view])
    assert (view.remaining, found.open_committed, found.remaining) == (5, 2, 7)
    assert found.open is not None
    assert found.open.open == 4


def test_stuck_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """4 if a limit is exceeded, with a line that says which; 0 otherwise."""
    view = group()
    stuck = [one for one in view.partitions if is_stuck(one, NOW, 60.0)]
    assert [one.work.partition for one in stuck] == [FIRST]
    assert exit_code(view, stuck, Showing(stuck=()), Limits()) == EXCEEDED == 4
    assert "Stuck: orders-0." in capsys.readouterr().err
    assert exit_code(view, [], Showing(stuck=()), Limits(max_remaining=5)) == 0
    assert exit_code(view, view.partitions, Showing(), Limits(max_remaining=4)) == EXCEEDED
    assert "5 records are left, more than --max-remaining=4." in capsys.readouterr().err


def test_a_partition_that_cannot_be_read_may_be_stuck(capsys: pytest.CaptureFixture[str]) -> None:
    """1: no script takes it for a group without a stuck record."""
    view = group()
    unread = replace(view, partitions=[replace(one, sampled=None) for one in view.partitions])
    assert exit_code(unread, [], Showing(stuck=()), Limits()) == UNKNOWN == 1
    assert "orders-0, orders-1" in capsys.readouterr().err
    assert exit_code(unread, unread.partitions, Showing(stuck=()), Limits()) == EXCEEDED
    assert exit_code(unread, unread.partitions, Showing(), Limits()) == 0


def test_the_list_has_a_row_for_each_group() -> None:
    """State, type, members, lag, remaining."""
    console = Console(width=100)
    with console.capture() as capture:
        console.print(list_table([group()]))
    assert capture.get().splitlines()[1].split() == ["billing", "Stable", "classic", "1", "1,966", "5"]
    assert group_not_found(GroupView("x", GroupState("Dead", "", ()), []))
    assert not group_not_found(group())


def test_letters_that_the_terminal_has() -> None:
    """Blocks, or ASCII."""
    assert letters_for("utf-8") == BLOCKS
    assert letters_for("ascii") == letters_for("no such encoding") == ASCII


def test_what_is_read_for_a_sample() -> None:
    """The oldest incomplete record and the newest unread offsets, never above an open transaction."""
    work = work_of(FIRST, Committed(37, MAP), 0, 5_000)
    assert spans_for(work, 5_000, whole=False) == [Span(37, 38), Span(4_900, 5_000)]
    assert spans_for(work, 2_050, whole=False) == [Span(37, 38), Span(2_000, 2_050)]
    assert spans_for(work, 37, whole=False) == []
    assert spans_for(work, 5_000, whole=True) == [Span(37, 5_000)]
    assert spans_for(work_of(FIRST, Committed(37, MAP), 0, 2_000), 2_000, whole=False) == [Span(37, 38)]
    assert spans_for(work_of(FIRST, Committed(37, ""), 0, 60), 60, whole=False) == [Span(37, 60)]


async def figures() -> Served:
    """What ``serve`` reads."""
    return Served([replace(group(), name='a "b"'), group()])


async def test_serve_answers_scrapers() -> None:
    """Prometheus text with escaped labels, and JSON with one number for KEDA."""
    source = Figures(figures, keep=60)
    found = await answer("/metrics", source)
    assert found.content_type.startswith("text/plain; version=0.0.4")
    assert "# TYPE aioparallel_group_remaining gauge\n" in found.body
    assert 'aioparallel_group_remaining{group="billing",topic="orders",partition="0"} 2\n' in found.body
    assert 'aioparallel_group_lag{group="a \\"b\\"",topic="orders",partition="1"} 3\n' in found.body
    assert 'aioparallel_group_members{group="billing"} 1\n' in found.body
    one = json.loads((await answer("/groups/billing", source)).body)
    assert (one["remaining"], one["lag"], one["member_count"]) == (5, 1_966, 1)
    assert [part["remaining"] for part in one["partitions"]] == [2, 3]
    assert json.loads((await answer("/groups/a%20%22b%22", source)).body)["group"] == 'a "b"'
    assert len(json.loads((await answer("/groups", source)).body)["groups"]) == 2
    missing = await answer("/groups/x", source)
    assert missing.status == 404
    assert "group 'x' is not served, or does not exist" in str(missing.body)


async def test_serve_has_the_lag_of_share_groups() -> None:
    """By partition; an unknown one is null, and left out of the metrics, with a count of these."""
    members = (ShareMember("a1", "worker", "10.0.0.7", ("jobs",), (TopicPartition("jobs", 0),)),)
    partitions = [
        SharePartitionView(TopicPartition("jobs", 0), ShareOffset(1_000, 234), 0, 1_300, members),
        SharePartitionView(TopicPartition("jobs", 1), ShareOffset(None, None), 0, 7, ()),
    ]

    async def read() -> Served:
        return Served([group()], [ShareView(ShareGroup("workers", "Stable", "simple", members), partitions, {})])

    source = Figures(read, keep=60)
    lines = str((await answer("/metrics", source)).body).splitlines()
    assert [line for line in lines if line.startswith("aioparallel_share_")] == [
        'aioparallel_share_group_lag{group="workers",topic="jobs",partition="0"} 234',
        'aioparallel_share_group_start_offset{group="workers",topic="jobs",partition="0"} 1000',
        'aioparallel_share_group_lag_unknown{group="workers"} 1',
        'aioparallel_share_group_members{group="workers"} 1',
    ]
    assert "# TYPE aioparallel_share_group_lag gauge" in lines
    one = json.loads((await answer("/groups/workers", source)).body)
    assert (one["lag"], one["member_count"], one["type"], "configs" in one) == (None, 1, "share", False)
    assert [part["lag"] for part in one["partitions"]] == [234, None]
    listed = json.loads((await answer("/groups", source)).body)["groups"]
    assert [two["group"] for two in listed] == ["billing", "workers"]


async def test_serve_keeps_answers_and_reports_errors() -> None:
    """Several readers mean one request to Kafka; without an answer the status is 503, and the next one asks again."""
    reads = 0

    async def read() -> Served:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise ClientError("no broker answers")
        return await figures()

    source = Figures(read, keep=60)
    refused = await answer("/metrics", source)
    assert (refused.status, refused.body) == (503, "no broker answers\n")
    await asyncio.gather(*(answer("/metrics", source) for _ in range(5)))
    assert reads == 2


async def test_serve_waits_for_kafka_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then all who wait get the same error, and the next one starts anew. A reader that has gone ends nothing."""
    monkeypatch.setattr(serving, "_READ", 0.05)
    reads = 0

    async def read() -> Served:
        nonlocal reads
        reads += 1
        await asyncio.sleep(60 if reads == 1 else 0)
        return await figures()

    source = Figures(read, keep=0)
    gone = asyncio.create_task(answer("/metrics", source))
    await asyncio.sleep(0)
    gone.cancel()
    found = await asyncio.gather(*(answer("/metrics", source) for _ in range(3)))
    assert {one.status for one in found} == {503}
    assert "has not answered within 0.05 s" in found[0].body
    assert reads == 1
    assert (await answer("/metrics", source)).status == 200


async def test_serve_answers_over_http() -> None:
    """The paths that it has, with a query as well; others are named in a 404."""
    async with server_of(Figures(figures, keep=60), "127.0.0.1", 0) as server, httpx.AsyncClient() as client:
        assert "aioparallel_group_remaining{" in (await client.get(f"{server.url}/metrics?x=1")).text
        assert (await client.get(f"{server.url}/groups/a%20%22b%22")).json()["group"] == 'a "b"'
        assert (await client.get(f"{server.url}/")).status_code == 200
        missing = await client.get(f"{server.url}/x")
        assert (missing.status_code, missing.text) == (404, "there are /metrics, /groups and /groups/NAME\n")
        assert (await client.post(f"{server.url}/metrics")).status_code == 405
        assert (await client.head(f"{server.url}/metrics")).text == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("groups", "show", "g", "--stuck", "soon"), "--stuck='soon': must be a duration"),
        (("groups", "show", "g", "--every", "0"), "--every=0.0: must be above 0 seconds"),
        (("groups", "show", "g", "--kmq", "=x"), "--kmq='=x': must be QUEUE or QUEUE=MARKERS"),
        (("groups", "serve", "--port", "70000"), "--port=70000: must be from 0 to 65535"),
        (("groups", "serve", "--keep", "-1"), "--keep=-1.0: must not be negative"),
    ],
)
def test_wrong_use_is_named_before_anything_is_connected(arguments: tuple[str, ...], said: str) -> None:
    """The option as it is typed."""
    ran = invoke(*arguments, environment={"AIOPARALLEL_BOOTSTRAP_SERVERS": "localhost:1"})
    assert ran.exit_code == 2, ran.output
    assert said in ran.stderr


def test_options_of_stuck_and_queues() -> None:
    """Without an age a minute; the default marker topic, or another one."""
    assert Showing().stuck_after is None
    assert Showing(stuck=()).stuck_after == 60.0
    assert Showing(stuck=("10m",)).stuck_after == 600.0
    assert GroupAccess(kmq=("jobs", "mail=marks")).queues() == {"jobs": None, "mail": "marks"}
    with pytest.raises(ConfigurationError):
        Serving(port=-1)


def test_a_share_group_in_the_list() -> None:
    """It has no commits, so zeros would say nothing."""
    console = Console(width=160)
    with console.capture() as capture:
        console.print(list_table([GroupView("workers", GroupState("Stable", "share", ()), []), group()]))
    _, share, consumers = (line.split() for line in capture.get().splitlines())
    assert share == ["workers", "Stable", "share", "-", "-", "-"]
    assert consumers == ["billing", "Stable", "classic", "1", "1,966", "5"]
