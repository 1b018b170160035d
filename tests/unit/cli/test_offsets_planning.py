"""Plans of changes, places as they are typed, files, and the fence around a commit."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.cli.groups.reading import Connected
from aioparallel.cli.offsets.changing import described
from aioparallel.cli.offsets.commands import Rewinding
from aioparallel.cli.offsets.exporting import Exported, as_document, parse_document
from aioparallel.cli.offsets.places import parse_places
from aioparallel.cli.offsets.planning import (
    Current,
    Refused,
    import_change,
    redo_change,
    rewind_change,
    shown_ranges,
    skip_change,
)
from aioparallel.cli.offsets.stored import KafkaPositions, members_text
from aioparallel.clients.aiokafka.group_admin import GroupMember, GroupState
from aioparallel.group.client import Committed
from aioparallel.offsets import decode_offset_map, encode_offset_map
from aioparallel.offsets.encoding import format_of
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ClientError, ConfigurationError, NotAuthorized
from aioparallel.records.record import TopicPartition
from tests.support.command_line import invoke

PLACE = TopicPartition("orders", 3)
MAP = encode_offset_map(37, 1_999, [37, 1_200])
NOW = Current(PLACE, Committed(37, MAP, 5), 0, 2_100, 4_096)


def no_epoch(_offset: int) -> int:
    return -1


# -- plans


def test_skip_keeps_the_leader_epoch_of_what_is_covered() -> None:
    """Within the map the highest covered record is the same. Above it, the epoch is that of the record there."""
    change = skip_change(NOW, [37], no_epoch)
    assert change.after == Committed(1_200, encode_offset_map(1_200, 1_999, [1_200], format="RunLength"), 5)
    assert change.difference == ([], [range(37, 38)])
    above = skip_change(NOW, [2_050], lambda offset: 7 if offset == 2_050 else 0)
    assert (above.after.offset, above.after.leader_epoch) == (37, 7)
    assert redo_change(NOW, [3]).after.leader_epoch == 5
    assert rewind_change(NOW, 3).after == Committed(3, "", 5)


def test_nothing_changes() -> None:
    """For offsets that are as they should be."""
    assert skip_change(NOW, [38], no_epoch).is_none
    assert redo_change(NOW, [37, 1_200, 2_050]).is_none
    assert rewind_change(NOW, 2_000).is_none
    assert described(skip_change(NOW, [38], no_epoch)) == ["orders:3: no change", "  complete already: 38"]


def test_a_plan_is_described() -> None:
    """What would be committed, what would run again and what would not run."""
    change = redo_change(NOW, [5, 6, 7, 1_500])
    text = change.after.metadata
    assert described(change) == [
        f"orders:3: offset 37 with a map (RunLength) of {len(MAP)} characters -> offset 5 with a map (RunLength) of "
        f"{len(text)} characters",
        "  4 offsets would run again: 5-7, 1500",
        "  no offset would not run",
    ]
    assert shown_ranges([range(n, n + 1) for n in range(0, 20, 2)]) == "0, 2, 4, 6, 8, 10 and 4 more ranges"


@given(st.integers(0, 60), st.sets(st.integers(0, 59), max_size=20), st.sets(st.integers(0, 59)))
def test_what_a_file_changes(base: int, above: set[int], others: set[int]) -> None:
    """Between any two positions."""
    here, there = ({*range(base), *above}, {*range(60 - base), *others})
    change = import_change(Current(PLACE, position_of(here), 0, 60, None), position_of(there))
    assert change.difference is not None
    again, skipped = ({offset for some in found for offset in some} for found in change.difference)
    assert (again, skipped) == (here - there, there - here)


def position_of(complete: set[int]) -> Committed:
    """A position with these offsets complete."""
    base = next(offset for offset in range(100) if offset not in complete)
    highest = max((offset for offset in complete if offset > base), default=base - 1)
    missing = [offset for offset in range(base, highest + 1) if offset not in complete]
    return Committed(base, encode_offset_map(base, highest, missing) if missing else "")


@pytest.mark.parametrize(
    ("position", "why"),
    [
        (Committed(2_101, ""), "outside the log, which has the offsets 10 to 2100"),
        (Committed(9, ""), "outside the log"),
        (Committed(2_000, encode_offset_map(2_000, 2_100, [2_000])), "covers offsets up to 2100, and the log ends at"),
        (Committed(20, "x" * 4_097), "has 4,097 characters, and the brokers accept 4,096"),
    ],
)
def test_a_file_is_refused(position: Committed, why: str) -> None:
    """If the log does not have its offsets, or the brokers do not take it."""
    with pytest.raises(Refused, match=why):
        import_change(NOW._replace(begin=10), position)


def test_a_new_map_that_is_too_long_is_refused() -> None:
    """And not cut: completed records would run again."""
    with pytest.raises(Refused, match="does not fit into the commit"):
        redo_change(NOW._replace(limit=20), range(100, 400, 3))


@pytest.mark.parametrize(
    ("metadata", "end"), [("", 30), (MAP, 1_999), (encode_offset_map(37, 1_999, [37], format="Dense"), 1_999)]
)
def test_a_commit_that_covers_more_than_the_log_is_refused(metadata: str, end: int) -> None:
    """The log has lost records. Once others have their offsets, the map would say that these are complete. To rewind is
    possible: nothing above is complete then."""
    now = NOW._replace(position=Committed(37, metadata, 5), end=end)
    with pytest.raises(Refused, match=f"and the log ends at {end}: it has lost records"):
        redo_change(now, [3])
    with pytest.raises(Refused, match="rewind"):
        skip_change(now, [37], no_epoch)
    known = decode_offset_map(*rewind_change(now, 20).after[:2])
    assert (known.base_offset, known.highest_succeeded) == (20, 19)


def test_a_first_map_has_a_note() -> None:
    """Consumers that read no maps would run more than the plan says."""
    now = NOW._replace(position=Committed(37, "", 5))
    assert "other consumers begin at 3 and run everything" in described(redo_change(now, [3]))[-1]
    assert len(described(skip_change(now, [37], no_epoch))) == 3
    assert len(described(redo_change(NOW, [3]))) == 3


def test_other_metadata_is_lost_only_if_the_position_moves() -> None:
    """Otherwise it stays."""
    now = NOW._replace(position=Committed(37, "other text"))
    assert "would be lost" in rewind_change(now, 36).notes[0]
    assert described(rewind_change(now, 37)) == ["orders:3: no change"]


# -- places


def test_places() -> None:
    """Topic, partition and offset, or a range of offsets."""
    assert parse_places(["a.b:0:7", "a.b:0:3-5", "c:1:0"]) == {
        TopicPartition("a.b", 0): [3, 4, 5, 7],
        TopicPartition("c", 1): [0],
    }
    # As `consume` and the log write them.
    assert parse_places(["a-b-0@7", "a-b-0 offset 8"]) == {TopicPartition("a-b", 0): [7, 8]}
    for wrong in ("a", "a@1", "a-1@x", "a-1 offset", "a:1", "a:1:x", "a:1:5-3", "a:-1:3", ":1:2", f"a:1:{'9' * 5_000}"):
        with pytest.raises(ConfigurationError, match="must be topic:partition:offset"):
            parse_places([wrong])
    with pytest.raises(ConfigurationError, match="use rewind for more"):
        parse_places(["a:1:0-1000000"])
    with pytest.raises(ConfigurationError, match="must be given"):
        parse_places([])


def test_where_to_rewind() -> None:
    """Topics and partitions."""
    assert Rewinding().includes(PLACE)
    assert Rewinding(topic=("orders",), partition=(3,)).includes(PLACE)
    assert not Rewinding(topic=("orders",), partition=(2,)).includes(PLACE)
    assert not Rewinding(topic=("x",)).includes(PLACE)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rewind", "g"), "--to=None: give exactly one of --to, --by, --to-offset"),
        (("rewind", "g", "--by", "3", "--to", "1h"), "--by=3: give exactly one of"),
        (("rewind", "g", "--by", "3", "--partition", "1"), "--partition=1: needs exactly one --topic"),
        (("skip", "g"), "PLACES=None: must be given, as in orders:3:1234"),
        (("redo", "g", "orders"), "PLACES='orders': must be topic:partition:offset"),
    ],
)
def test_wrong_use_is_named_before_anything_is_connected(arguments: tuple[str, ...], said: str) -> None:
    """The option as it is typed."""
    ran = invoke("offsets", *arguments, environment={"AIOPARALLEL_BOOTSTRAP_SERVERS": "localhost:1"})
    assert ran.exit_code == 2, ran.output
    assert said in ran.stderr


# -- files


def test_a_file_has_what_it_was_written_from() -> None:
    """Also dense maps and unknown epochs."""
    dense = encode_offset_map(3, 50, [3, 7], format="Dense")
    positions = {
        PLACE: Exported(Committed(37, MAP, 5), "ab" * 16),
        TopicPartition("x", 0): Exported(Committed(3, dense), ""),
    }
    document = as_document("billing", positions, 1_800_000_000.0)
    assert parse_document(json.dumps(document)) == positions
    assert list(document) == ["version", "group", "exported", "positions"]
    first, second = cast("list[dict[str, object]]", document["positions"])
    assert list(first) == ["topic", "partition", "topic_id", "offset", "leader_epoch", "map_format", "metadata"]
    assert (first["map_format"], second["map_format"], second["leader_epoch"]) == ("RunLength", "Dense", None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is no JSON"),
        ("[]", "must be written by `aioparallel offsets export`, version 1"),
        ('{"version": 2}', "version 1"),
        ('{"version": 1, "positions": []}', "has no positions"),
        ('{"version": 1, "positions": [3]}', "must be an object"),
        (
            '{"version": 1, "positions": [{"topic": "a", "partition": true, "offset": 0, "metadata": ""}]}',
            "FILE=True: positions[0].partition must be a number from 0 on",
        ),
        (
            '{"version": 1, "positions": [{"topic": "a", "partition": 0, "offset": 0}]}',
            "].metadata must be a text",
        ),
        ('{"version": 1, "positions": 5}', "has no positions"),
        (
            '{"version": 1, "positions": [{"topic": "a", "partition": 0, "offset": 0, "metadata": "\\ud800"}]}',
            "].metadata has half a surrogate pair",
        ),
        *(
            (
                '{"version": 1, "positions": [{"topic": "a", "partition": 0, "offset": 0, "metadata": "", '
                f'"leader_epoch": {epoch}}}]}}',
                "].leader_epoch must be an int32 from 0 on, or null",
            )
            for epoch in ("2147483648", "-2", "true", '"5"')
        ),
    ],
)
def test_a_file_that_is_none(text: str, why: str) -> None:
    """It says what is wrong."""
    with pytest.raises(ConfigurationError, match=re.escape(why)):
        parse_document(text)


# -- the fence


class FakeAdmin:
    """A group's coordinator. ``code``: how it answers commits; ``codes``: of single partitions. ``meanwhile``:
    committed by another program, just after a commit. ``hangs_after_commit``: then it answers nothing more."""

    def __init__(
        self,
        *,
        code: int = 0,
        codes: Mapping[TopicPartition, int] | None = None,
        error: Exception | None = None,
        meanwhile: Committed | None = None,
        hangs_after_commit: bool = False,
    ) -> None:
        self.stored: dict[TopicPartition, Committed | int] = {PLACE: Committed(37, MAP, 5)}
        self.code = code
        self.codes = codes or {}
        self.error = error
        self.meanwhile = meanwhile
        self.hangs_after_commit = hangs_after_commit
        self.commits = 0

    async def stable_offsets(
        self, _group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Committed | int]:
        if self.hangs_after_commit and self.commits:
            raise TimeoutError("hangs")
        return {place: self.stored[place] for place in partitions if place in self.stored}

    async def commit(self, _group: str, positions: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, int]:
        self.commits += 1
        codes = {place: self.codes.get(place, self.code) for place in positions}
        if not isinstance(self.error, ClientError):
            self.stored.update({place: one for place, one in positions.items() if not codes[place]})
        if self.meanwhile is not None:
            self.stored[PLACE] = self.meanwhile
        if self.error is not None:
            raise self.error
        return codes


AFTER = {PLACE: Committed(1_200, "", 5)}
BEFORE: dict[TopicPartition, Committed | None] = {PLACE: Committed(37, MAP, 5)}


def positions_in(admin: FakeAdmin) -> KafkaPositions:
    return KafkaPositions(Connected(cast("Any", admin), cast("Any", None)), "billing", 4_096)


async def test_a_commit_is_read_back() -> None:
    """It is written, and found."""
    admin = FakeAdmin()
    await positions_in(admin).write(BEFORE, AFTER)
    assert admin.stored == AFTER


@pytest.mark.parametrize(
    ("admin", "why", "commits"),
    [
        (FakeAdmin(code=ErrorCode.UNKNOWN_MEMBER_ID), "a member has joined the group .*UNKNOWN_MEMBER_ID", 1),
        (FakeAdmin(code=ErrorCode.REBALANCE_IN_PROGRESS), "a member has joined .*REBALANCE_IN_PROGRESS", 1),
        (FakeAdmin(code=ErrorCode.OFFSET_METADATA_TOO_LARGE), "do not accept metadata of this length", 1),
        (FakeAdmin(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED), "TOPIC_AUTHORIZATION_FAILED", 1),
        (FakeAdmin(code=12_345), "error code 12345", 1),
        (FakeAdmin(meanwhile=Committed(9, "")), "offset 9 is stored now, not 1200: another program", 1),
        (FakeAdmin(error=ClientError("lost")), "offset 37 is stored now, not 1200; the commit may still arrive", 1),
    ],
)
async def test_a_commit_that_is_refused(admin: FakeAdmin, why: str, commits: int) -> None:
    """Each answer has its sentence, and nothing is repeated."""
    with pytest.raises(Refused, match=why):
        await positions_in(admin).write(BEFORE, AFTER)
    assert admin.commits == commits


OTHER = TopicPartition("orders", 4)
BOTH = {PLACE: Committed(1_200, "", 5), OTHER: Committed(7, "x" * 600_000)}


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "orders-4: the broker has refused the commit .TOPIC_AUTHORIZATION"),
        (ErrorCode.UNKNOWN_MEMBER_ID, r"a member has joined the group meanwhile: .*UNKNOWN_MEMBER_ID\); stop all"),
    ],
)
async def test_a_commit_of_some_partitions_names_them(code: int, why: str) -> None:
    """What is too large for one request goes in several. If one is refused, the others were carried out."""
    admin = FakeAdmin(codes={OTHER: code})
    before = {**BEFORE, OTHER: None}
    for after, requests in ((BOTH, 2), ({**BOTH, OTHER: Committed(7, "")}, 1)):
        admin.stored, admin.commits = {PLACE: Committed(37, MAP, 5)}, 0
        with pytest.raises(Refused, match=why + ".* Committed all the same, and changed: orders-3$"):
            await positions_in(admin).write(before, after)
        assert (admin.stored, admin.commits) == ({PLACE: BOTH[PLACE]}, requests)
    await positions_in(FakeAdmin()).write(before, BOTH)


async def test_an_unknown_outcome_is_said() -> None:
    """Neither the commit nor the question for it is answered; or only the question is not."""
    for error, why in (
        (TimeoutError("late"), r"it is unknown whether the commit was carried out; .*\(late\): hangs"),
        (None, "hangs. Committed all the same, and changed: orders-3"),
    ):
        admin = FakeAdmin(error=error, hangs_after_commit=True)
        with pytest.raises(Refused, match=why):
            await positions_in(admin).write(BEFORE, AFTER)


async def test_a_commit_without_an_answer_is_looked_up() -> None:
    """It has arrived all the same. A right that is missing is reported as it is."""
    await positions_in(FakeAdmin(error=TimeoutError("no answer"))).write(BEFORE, AFTER)
    with pytest.raises(NotAuthorized):
        await positions_in(FakeAdmin(error=NotAuthorized("no"))).write(BEFORE, AFTER)


@pytest.mark.parametrize("other", [Committed(38, MAP, 5), Committed(37, "", 5), None])
async def test_what_has_changed_is_not_overwritten(other: Committed | None) -> None:
    """Offset or map; nothing is sent."""
    admin = FakeAdmin()
    if other is None:
        del admin.stored[PLACE]
    else:
        admin.stored[PLACE] = other
    with pytest.raises(Refused, match="another program has committed meanwhile"):
        await positions_in(admin).write(BEFORE, AFTER)
    assert admin.commits == 0


async def test_an_open_transaction_is_refused() -> None:
    """Whatever else the broker says of a partition is refused, too."""
    admin = FakeAdmin()
    admin.stored[PLACE] = ErrorCode.UNSTABLE_OFFSET_COMMIT
    with pytest.raises(Refused, match="a transaction with an offset of this group is open"):
        await positions_in(admin).read([PLACE])
    admin.stored[PLACE] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(Refused, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await positions_in(admin).read([PLACE])


def test_members_are_named() -> None:
    """The first five."""
    members = tuple(GroupMember(f"m{n}", "pod" if n == 0 else None, "c", f"10.0.0.{n}", ()) for n in range(7))
    text = members_text(GroupState("Stable", "classic", members))
    assert text.startswith("c at 10.0.0.0 (static pod), c at 10.0.0.1, ")
    assert text.endswith(" and 2 more")


def test_a_map_of_the_java_library_in_another_java_format() -> None:
    """If its own cannot represent the new map: a run of more than 32,767 offsets."""
    found = encode_offset_map(40_000, 40_001, [40_000], format="RunLength")
    now = NOW._replace(position=Committed(40_000, found), end=90_000)
    after = redo_change(now, [1]).after
    assert format_of(after.metadata) == "RunLengthV2"
    assert decode_offset_map(1, after.metadata).incompletes == (1, 40_000)
