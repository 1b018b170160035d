"""The checks of the benchmark: a right run passes, and each kind of wrong one is told of, record by record."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import numpy as np
import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.testing import EmbeddedBroker
from aioparallel.testing.event_log import Event, EventKind
from benchmarks.checks import check_events, check_lives, check_output
from benchmarks.evidence import Evidence
from benchmarks.workload import Lane, Shape, Workload

KINDS = {"b": EventKind.BEGAN, "e": EventKind.ENDED, "f": EventKind.FAILED}


def of_keys(*keys: int) -> Workload:
    """One partition of records with these keys, by offset."""
    numbers = np.array(keys, np.uint32)
    names: list[bytes | None] = [b"%d" % number for number in range(max(keys, default=0) + 1)]
    shape = Shape(records=len(keys), keys=len(names), partitions=1)
    return Workload(shape, numbers, np.zeros(len(keys), np.uint32), np.zeros(len(keys), np.int64), names, [])


def events(words: str) -> Evidence:
    """``b0 e0`` is the beginning and the end of the record at offset 0; a failed handler is ``f0``."""
    return Evidence.of([Event(KINDS[word[0]], 0, int(word[1:])) for word in words.split()])


def begun(seen: Evidence) -> Evidence:
    """What handlers write that return at once."""
    return Evidence.of([event for event in seen.events() if event.kind is EventKind.BEGAN])


def played(keys: list[int], concurrency: int, order: Lane, chance: random.Random) -> list[Event]:
    """The events of a right consumer, with handlers that take a random time."""
    waiting, running, found = list(range(len(keys))), list[int](), list[Event]()
    while waiting or running:
        lanes = {keys[offset] if order == "key" else 0 for offset in running if order != "unordered"}
        ready = []
        for offset in waiting:
            lane = keys[offset] if order == "key" else 0
            if order == "unordered" or lane not in lanes:
                ready.append(offset)
                lanes.add(lane)
        if ready and len(running) < concurrency and (not running or chance.random() < 0.6):
            offset = chance.choice(ready)
            waiting.remove(offset)
            running.append(offset)
            found.append(Event(EventKind.BEGAN, 0, offset))
        else:
            found.append(Event(EventKind.ENDED, 0, running.pop(chance.randrange(len(running)))))
    return found


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=25), st.integers(1, 8),
    st.sampled_from(["key", "partition", "unordered"]), st.randoms(use_true_random=False),
)  # fmt: skip
def test_a_right_run_has_no_problems(keys: list[int], concurrency: int, order: Lane, rng: random.Random) -> None:
    """Whatever a consumer does within its promise is accepted: as it is, cut off, and without the ends."""
    workload, right = of_keys(*keys), played(keys, concurrency, order, rng)
    seen = Evidence.of(right)
    assert check_events(seen, workload, order) == []
    assert 1 <= seen.peak_in_flight <= concurrency
    cut = Evidence.of(right[: rng.randint(0, len(right))])
    assert check_events(cut, workload, order, missing=True, cut=True) == []
    assert check_events(begun(seen), workload, order, ends=False) == []


@given(st.lists(st.integers(0, 3), min_size=2, max_size=20), st.randoms(use_true_random=False), st.data())
def test_any_two_records_of_a_key_swapped_are_found(keys: list[int], rng: random.Random, data: st.DataObject) -> None:
    """In a run without problems, two records of one key change places: told of, for both kinds of handlers."""
    pairs = [(a, b) for b in range(len(keys)) for a in range(b) if keys[a] == keys[b]]
    if not pairs:
        return
    first, second = data.draw(st.sampled_from(pairs))
    swap = {first: second, second: first}
    swapped = Evidence.of(
        [event._replace(offset=swap.get(event.offset, event.offset)) for event in played(keys, 4, "key", rng)]
    )
    assert check_events(swapped, of_keys(*keys), "key")
    assert check_events(begun(swapped), of_keys(*keys), "key", ends=False)
    assert check_events(swapped, of_keys(*keys), "unordered") == []


def test_a_missing_record_is_found() -> None:
    """It is named with partition, offset and key; a run that was stopped may miss some."""
    problem = "partition 0, offset 1 (key b'8'): was never handled"
    assert check_events(events("b0 e0"), of_keys(7, 8), "key") == [problem]
    assert check_events(events("b0"), of_keys(7, 8), "key", ends=False) == [problem]
    assert check_events(events("b0"), of_keys(7, 8), "key", ends=False, missing=True) == []


@pytest.mark.parametrize("order", ["key", "partition", "unordered"])
def test_each_record_is_counted_by_itself(order: Lane) -> None:
    """One that comes twice does not stand for another that never came, whatever order is promised; nor in a run that
    was stopped."""
    twice = "partition 0, offset 0 (key b'7'): began 2 times"
    found = check_events(events("b0 b0 e0 b1 e1 e2"), of_keys(7, 8, 9), order)
    assert twice in found
    assert "partition 0, offset 2 (key b'9'): was never handled" in found
    assert "partition 0, offset 2 (key b'9'): ended without having begun" in found
    assert twice in check_events(events("b0 e0 b0"), of_keys(7, 8), order, missing=True, cut=True)
    assert twice in check_events(events("b0 b0 b1"), of_keys(7, 8), order, ends=False)


@pytest.mark.parametrize("order", ["key", "partition", "unordered"])
def test_ends_without_sense_are_found(order: Lane) -> None:
    """A handler without an end, an end before its beginning, an end too many, an end that was a failure."""
    one, place = of_keys(7), "partition 0, offset 0 (key b'7'): "
    assert check_events(events("b0"), one, order) == [f"{place}its handler never ended"]
    assert check_events(events("b0"), one, order, missing=True, cut=True) == []
    assert check_events(events("e0 b0"), one, order) == [f"{place}ended without having begun"]
    assert check_events(events("e0"), one, order, missing=True) == [f"{place}ended without having begun"]
    assert check_events(events("b0 e0 e0"), one, order) == [f"{place}ended 2 times"]
    assert check_events(events("b0 f0"), one, order) == [f"{place}its handler failed"]
    again = check_events(events("b0 e0 b0"), one, order)
    assert again == [f"{place}began 2 times", f"{place}its handler never ended"]


def test_an_overlap_is_found() -> None:
    """Two handlers of one key at once, or of one partition where that is the order; others may overlap."""
    seen = events("b0 b1 e0 b2 e1 e2")
    overlap = (
        "partition 0, offset 2 (key b'8'): began before partition 0, offset 1 (key b'8') of the same key had ended"
    )
    assert check_events(seen, of_keys(7, 8, 8), "key") == [overlap]
    assert check_events(seen, of_keys(7, 8, 9), "key") == []
    assert check_events(seen, of_keys(7, 8, 8), "unordered") == []
    (found,) = check_events(seen, of_keys(7, 8, 9), "partition")
    assert found.endswith("began before partition 0, offset 0 (key b'7') of the same partition had ended")


def test_a_reordered_record_is_found() -> None:
    """One after the other, but not by ascending offset."""
    problem = "partition 0, offset 0 (key b'8'): began after partition 0, offset 2 (key b'8') of the same key"
    seen = events("b2 e2 b0 e0 b1 e1")
    assert check_events(seen, of_keys(8, 7, 8), "key") == [problem]
    assert check_events(begun(seen), of_keys(8, 7, 8), "key", ends=False) == [problem]
    assert check_events(seen, of_keys(8, 7, 8), "unordered") == []


def test_records_that_are_not_in_the_topic_are_found() -> None:
    """An offset behind the last one, and a partition that there is not."""
    seen = Evidence.of([*events("b0 b1").events(), Event(EventKind.BEGAN, 3, 0)])
    assert check_events(seen, of_keys(7), "key", ends=False) == [
        "partition 0, offset 1: the topic has no such record",
        "partition 3, offset 0: the topic has no such record",
    ]


def test_of_many_problems_the_first_are_told_and_all_counted() -> None:
    """Over all partitions, also where the first has no record."""
    five = replace(of_keys(1, 2, 3, 4, 5), homes=np.array([1, 1, 2, 2, 2]), shape=Shape(5, 6, 4))
    assert check_events(events(""), five, "key") == [
        "partition 1, offset 0 (key b'1'): was never handled",
        "partition 1, offset 1 (key b'2'): was never handled",
        "partition 2, offset 0 (key b'3'): was never handled",
        "records never handled: 5 in all",
    ]


def test_after_a_crash_records_may_come_again() -> None:
    """Those that ran may repeat in the next process; none may be lost."""
    for order in ("key", "unordered"):
        assert check_lives([events("b0 e0 b1"), events("b0 e0 b1 e1")], of_keys(7, 7), order) == []
        lost = check_lives([events("b0 e0"), events("b0 e0")], of_keys(7, 8), order)
        assert lost == ["partition 0, offset 1 (key b'8'): was never handled"]
        unended = check_lives([events("b0 e0"), events("b1")], of_keys(7, 8), order)
        assert "process 2: partition 0, offset 1 (key b'8'): its handler never ended" in unended


@pytest.mark.parametrize("together", [False, True])
def test_within_one_life_nothing_comes_again(together: bool) -> None:
    """A crash is no excuse for what the same process did twice, nor are other members."""
    problem = "partition 0, offset 0 (key b'7'): began 2 times"
    twice, rest = events("b0 e0 b0 e0"), events("b1 e1")
    for lives, number in (([twice, rest], 1), ([rest, twice], 2)):
        found = check_lives(lives, of_keys(7, 8), "unordered", together=together)
        assert found == [f"process {number}: {problem}"]


def test_a_crash_skips_nothing() -> None:
    """A record that was interrupted comes before the ones behind it in its key."""
    (found,) = check_lives([events("b0"), events("b1 e1 b2 e2 b0 e0")], of_keys(7, 8, 7), "key")[1:]
    assert found.startswith("skipped: ")
    assert check_lives([events("b0"), events("b1 e1 b0 e0 b2 e2")], of_keys(7, 8, 7), "key") == []


def test_members_keep_their_order_each() -> None:
    """Of processes at the same time, with and without ends."""
    right, wrong = [events("b0 e0 b2 e2"), events("b1 e1")], [events("b2 e2 b0 e0"), events("b1 e1")]
    for ends in (True, False):
        assert check_lives(right, of_keys(7, 8, 7), "key", ends=ends, together=True) == []
        assert "process 1: " in check_lives(wrong, of_keys(7, 8, 7), "key", ends=ends, together=True)[0]
        assert check_lives([right[0], events("")], of_keys(7, 8, 7), "key", ends=ends, together=True)


async def test_an_output_is_compared_with_its_record() -> None:
    """A value that is none of the input's, another key, and what is missing are told; a right output passes."""
    workload = Shape(records=4, keys=2, partitions=1).workload(1)
    async with EmbeddedBroker() as broker:

        def output(topic: str, *records: tuple[bytes | None, bytes | None]) -> list[str]:
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
            for key, value in records:
                producer.produce(topic, value, key, 0)
            assert producer.flush(60) == 0
            return check_output(broker.bootstrap_servers, topic, workload, "key")

        right = [(message["key"], message["value"]) for message in workload.messages(0)]
        for topic in ("right", "wrong"):
            await broker.create_topic(topic, 1)
        assert output("right", *right) == []
        wrong = ((b"other", right[3][1]), (None, None), (b"k", b"garbage"), (b"k", b"-1 -1"), (b"k", b"9" * 5_000))
        found = output("wrong", *right[:3], *wrong)
    assert [problem.split(": it is")[0] for problem in found[:3]] == [
        f"its output: partition 0, offset {offset}" for offset in (3, 4, 5)
    ]
    assert found[3] == "its output: records that are not of the input: 5 in all"
    assert found[4].startswith("its output: partition 0, offset 3 (key")
    assert found[4].endswith("was never handled")


def test_half_a_million_records_are_checked_quickly() -> None:
    """In far less time than a run takes: the bound is generous, of a machine that is busy."""
    workload = Shape(records=500_000, keys=2_000, partitions=8).workload(1)
    places = [np.arange(len(records)) for records in workload.places]
    offsets = np.repeat(np.concatenate(places), 2)
    partitions = np.repeat(np.repeat(np.arange(8), [len(one) for one in places]), 2)
    kinds = np.tile([int(EventKind.BEGAN), int(EventKind.ENDED)], 500_000)
    seen = Evidence(kinds, partitions, offsets, np.zeros_like(kinds))
    started = time.perf_counter()
    assert check_events(seen, workload, "key") == []
    assert time.perf_counter() - started < 5
