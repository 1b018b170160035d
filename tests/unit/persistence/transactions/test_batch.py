"""What goes into one transaction, where the offset map says only a part."""

from __future__ import annotations

import random
from collections import defaultdict
from math import inf

from aioparallel.group.assignment import Assignment
from aioparallel.group.offset_commits import LedgerSnapshot
from aioparallel.offsets import OffsetMap, decode_offset_map
from aioparallel.persistence.transactions.batch import Taken, slice_of
from aioparallel.persistence.transactions.pending_outputs import Entry
from aioparallel.records.record import Outgoing, Record, TopicPartition

SESSION = Assignment(TopicPartition("in", 0))


def course(chance: random.Random) -> tuple[OffsetMap, list[Entry]]:
    """Records of seven keys that have ended, one by one or in batches, while others are stuck."""
    waiting: defaultdict[int, list[int]] = defaultdict(list)
    for offset in range(60):
        waiting[chance.randrange(7)].append(offset)
    for key in chance.sample(range(7), chance.randrange(1, 4)):
        del waiting[key][chance.randrange(len(waiting[key]) + 1) :]
    entries, done = [], set()
    while any(waiting.values()) and chance.random() < 0.97:
        keys = [key for key, offsets in waiting.items() if offsets]
        records = []
        for key in chance.sample(keys, min(len(keys), chance.choice([1, 1, 1, 2, 5]))):
            record = Record("in", 0, waiting[key].pop(0), b"%d" % key, None)
            record._lane = key
            records.append(record)
        records.sort(key=lambda record: record.offset)
        together = records if len(records) > 1 else ()
        entries.append(Entry(records[0], Outgoing("out", b"x"), together=together))
        done |= {record.offset for record in records}
    base, highest = min(set(range(61)) - done), max(done, default=-1)
    return OffsetMap(base, max(highest, base - 1), tuple(n for n in range(base, highest + 1) if n not in done)), entries


def test_what_a_cut_map_leaves_behind_keeps_the_order_of_each_key() -> None:
    """Any records and batches, maps that do not fit, room for a part: what goes is said, what stays is not, and
    nothing goes before what stands ahead of it in its key."""
    chance = random.Random(7)
    cuts = parts = 0
    for _ in range(600):
        said, entries = course(chance)
        room, least = chance.choice([inf, inf, 40_000, 3_000, 500, 0]), chance.choice([0, 1])
        limit = chance.choice([8, 12, 16, 20, 200])
        taken = Taken(LedgerSnapshot(SESSION, said, (0, 0)), entries, -1)
        one = slice_of(taken, limit, "all", room, least)
        # What waits for more of a map waits for it whatever room there is.
        assert one.behind == slice_of(taken, limit, "all", inf).behind
        cuts += one.whole.cut
        parts += one.is_part
        if one.is_passed_over:
            assert not one.entries
            assert not least
            continue
        # More than there is room for, only where the map of less does not fit.
        assert len(one.entries) <= least or one.size <= room or limit < 200
        assert one.sample.version == ((-1, -1) if one.is_part else (0, 0))
        position = decode_offset_map(*one.sample.committed[:2])
        goes = set(map(id, one.entries))
        closed: set[object] = set()
        for entry in entries:
            complete = [
                record.offset < position.base_offset
                or (record.offset <= position.highest_succeeded and record.offset not in position.incompletes)
                for record in entry.records
            ]
            assert set(complete) == {id(entry) in goes}
            lanes = {record._lane for record in entry.records}
            assert id(entry) not in goes or closed.isdisjoint(lanes)
            if id(entry) not in goes:
                closed |= lanes
    assert cuts > 20
    assert parts > 20
