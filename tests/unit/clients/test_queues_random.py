"""A producer's queues with the in-memory broker, with random results of each request."""

from __future__ import annotations

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from aioparallel.records.errors import ProduceFailed
from tests.support.examples import examples
from tests.support.memory.producer_queues import NO_ANSWER, TIMEOUT, Cluster, fits

Step = tuple[str, object]

SOMETIMES = [
    # What becomes of a request under way besides an answer: never arrived, arrived without the answer coming back, or
    # taken for lost and arriving later.
    *("lost", "unheard", "late", "arrive"),
    # What the broker refuses from now on, and does not refuse any more.
    *("limit", "no limit", "deny", "allow", "compact", "keep"),
    # What the metadata says.
    *("unknown", "known", "unauthorized"),
    "wait",
]


@st.composite
def scripts(draw: st.DrawFn) -> list[Step]:
    """A few kinds of faults at a time, because rare ones hardly occur together if each script has them all."""
    trouble = draw(st.lists(st.sampled_from(SOMETIMES), min_size=1, max_size=5, unique=True))
    kinds = draw(st.lists(st.sampled_from([None, b"large", b"unencodable"]), max_size=2, unique=True))
    return draw(st.lists(steps([b"k", b"k", *kinds], [*trouble, *trouble, "send", "request", "answer"]), max_size=40))


@st.composite
def steps(draw: st.DrawFn, kinds: list[bytes | None], names: list[str]) -> Step:
    name = draw(st.sampled_from(names))
    if name == "send":
        return name, (
            draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=8)),
            draw(st.sampled_from([0, 0, 1, None])),
        )
    if name == "wait":
        return name, draw(st.sampled_from([0.5, 3.0, 6.0, 11.0]))
    return name, draw(st.integers(0, 5))


def play(cluster: Cluster, name: str, what: object) -> None:
    """Runs one step."""
    broker = cluster.broker
    number = what if isinstance(what, int) else 0
    match name:
        case "send":
            assert isinstance(what, tuple)
            cluster.send(*what)
        case "wait":
            assert isinstance(what, float)
            cluster.wait(what)
        case "request":
            cluster.request(limit=1 + 3 * number)
        case "known" | "unknown":
            cluster.know_topic(name == "known")
        case "unauthorized":
            cluster.unauthorized()
        case "limit":
            broker.max_message_bytes = 1 + number
        case "no limit":
            broker.max_message_bytes = None
        case "deny" | "allow":
            broker.deny_topic("t", denied=name == "deny")
        case "compact" | "keep":
            broker.make_compacted("t", compacted=name == "compact")
        case "arrive" if cluster.late:
            cluster.arrive(cluster.late.pop(number % len(cluster.late)))
        case "answer" | "lost" | "unheard" | "late" if cluster.flying:
            to_a_flight(cluster, name, number)


def to_a_flight(cluster: Cluster, name: str, number: int) -> None:
    """The result of one of the requests in flight."""
    flight = cluster.flying.pop(number % len(cluster.flying))
    if name == "late":
        cluster.late.append(flight)
    arrived = cluster.arrive(flight) if name in {"answer", "unheard"} else NO_ANSWER
    cluster.answer(flight, arrived if name == "answer" else NO_ANSWER)


def finish(cluster: Cluster) -> None:
    """Everything works again, and all outputs get a result."""
    for name in ("known", "no limit", "allow", "keep"):
        play(cluster, name, 0)
    for _ in range(1000):
        cluster.request()
        while cluster.flying:
            to_a_flight(cluster, "answer", 0)
        if not cluster.outstanding:
            return
    raise AssertionError(f"{cluster.outstanding} sends never end")


def check(cluster: Cluster) -> None:
    """Each log is in the order of sending without duplicates, and contains what was reported as written."""
    assert not cluster.told_twice
    logs = cluster.logs
    for log in logs:
        assert log == sorted(set(log)), f"twice, or not in the order of sending: {log}"
    places: set[tuple[int, int]] = set()
    starts = sorted(cluster.results)
    for first, after in itertools.pairwise([*starts, len(cluster.sent)]):
        result = cluster.results[first]
        if isinstance(result, ProduceFailed):
            continue
        assert len(result) == after - first
        for number, place in enumerate(result, first):
            output = cluster.sent[number]
            assert fits(output)
            assert output.partition in {None, place.partition}
            assert number in logs[place.partition], f"{number} is acknowledged and not in the log"
            if place.offset >= 0:
                assert logs[place.partition][place.offset] == number
                assert (place.partition, place.offset) not in places, "acknowledged twice"
                places.add((place.partition, place.offset))


def run(script: list[Step]) -> Cluster:
    cluster = Cluster(partitions=2)
    for name, what in script:
        play(cluster, name, what)
    finish(cluster)
    check(cluster)
    while cluster.late:
        play(cluster, "arrive", 0)
    check(cluster)
    return cluster


A = ([b"k"], 0)
TWO = ([b"k", b"k"], 0)
REFUSED: list[Step] = [("request", 5), ("answer", 0)]


@settings(max_examples=examples(500))
@given(scripts())
# What was proven before there were epochs. A repeated batch is refused although it was written:
@example([("send", A), ("request", 0), ("unheard", 0), ("deny", 0), ("request", 0), ("answer", 0), ("allow", 0),
          ("send", A), ("request", 0), ("answer", 0)])  # fmt: skip
# ... for its size, and is taken apart:
@example([("send", TWO), ("request", 5), ("unheard", 0), ("limit", 0), ("request", 5), ("answer", 0)])
# ... or it is a single one:
@example([("send", ([b"large"], 0)), ("request", 0), ("unheard", 0), ("limit", 4), ("request", 0), ("answer", 0),
          ("send", A), ("request", 0), ("answer", 0)])  # fmt: skip
# ... or its pieces are out of time before the first of them is answered:
@example([("send", ([None, None], 0)), ("request", 5), ("unheard", 0), ("compact", 0), ("request", 5), ("answer", 0),
          ("wait", 11.0), ("keep", 0), ("send", TWO), ("request", 5), ("answer", 0)])  # fmt: skip
# ... or each of its pieces is refused, by itself:
@example([("send", ([None, None], 0)), ("request", 5), ("unheard", 0), ("compact", 0), *REFUSED * 3, ("keep", 0),
          ("send", TWO), ("request", 5), ("answer", 0)])  # fmt: skip
@example([("send", ([None, None], 0)), ("request", 5), ("unheard", 0), ("compact", 0), *REFUSED, ("deny", 0),
          *REFUSED * 2, ("allow", 0), ("keep", 0), ("send", TWO), ("request", 5), ("answer", 0)])  # fmt: skip
# ... or they are not authorised, by then:
@example([("send", ([None, None], 0)), ("request", 5), ("unheard", 0), ("compact", 0), *REFUSED, ("unauthorized", 0),
          ("keep", 0), ("send", TWO), ("request", 5), ("answer", 0)])  # fmt: skip
# The metadata says "not authorised" while it is under way:
@example([("send", A), ("request", 0), ("unauthorized", 0), ("unheard", 0), ("send", A), ("request", 0),
          ("answer", 0)])  # fmt: skip
# It arrives when it is given up, before newer ones and after them:
@example([("send", A), ("request", 0), ("wait", 6.0), ("send", A), ("wait", 6.0), ("arrive", 0), ("request", 0),
          ("answer", 0)])  # fmt: skip
@example([("send", A), ("request", 0), ("wait", 6.0), ("send", A), ("wait", 6.0), ("request", 0), ("answer", 0),
          ("arrive", 0)])  # fmt: skip
# Half of it is out of time, it arrives all the same, and the other half is acknowledged:
@example([("send", A), ("wait", 6.0), ("send", A), ("request", 5), ("unheard", 0), ("wait", 6.0), ("request", 5),
          ("answer", 0)])  # fmt: skip
def test_acknowledged_means_written_once_and_in_order(script: list[Step]) -> None:
    """Answers are lost, requests late, refused, expired, unauthorised or split, in any order. Each send gets one
    result. An output reported as written is in the log once, at its offset. Each log is in the order of sending without
    duplicates. Nothing waits for ever."""
    cluster = run(script)
    assert len(cluster.results) == sum(1 for name, _ in script if name == "send")


def test_a_refused_output_fails_by_itself() -> None:
    """The other outputs of its batch are written, even if an earlier attempt had no answer."""
    cluster = run(
        [
            ("send", ([b"k", b"k"], 0)),
            ("send", ([b"large"], 0)),
            ("send", ([b"k", b"k"], 0)),
            ("limit", 4),
            ("request", 5),
            ("lost", 0),
            *[("request", 5), ("answer", 0)] * 8,
        ]
    )
    assert [first for first, result in cluster.results.items() if isinstance(result, ProduceFailed)] == [2]
    assert cluster.logs[0] == [0, 1, 3, 4]


def test_what_is_in_time_is_not_given_up() -> None:
    """An output fails at its own deadline. Another one in its batch continues to wait for the answer."""
    cluster = Cluster(partitions=1)
    for name, what in [("send", A), ("wait", 6.0), ("send", A), ("request", 5), ("wait", 6.0)]:
        play(cluster, name, what)
    assert list(cluster.results) == [0]
    to_a_flight(cluster, "answer", 0)
    assert cluster.logs == [[0, 1]]
    assert cluster.results[1] == [("t", 0, 1, 0)] or cluster.results[1] == (("t", 0, 1, 0),)
    assert TIMEOUT == 10.0
