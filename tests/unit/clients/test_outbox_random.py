"""The outbox against a simulated broker, with chance deciding what happens to each request."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from aioparallel.clients.outbox.partition_queue import Batch
from aioparallel.clients.outbox.verdicts import Answer, Verdict
from aioparallel.errors import ProduceFailed
from tests.examples import examples

from .simulated import TIMEOUT, Cluster, fits

KINDS = st.sampled_from([None, None, None, None, b"poison", b"large", b"unencodable"])
AGAIN = Answer(Verdict.AGAIN, "no answer")


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, object]:
    name = draw(
        st.sampled_from(
            [
                "send",
                "send",
                "send",
                "request",
                "answer",
                "answer",
                "lost",
                "unheard",
                "forget",
                "wait",
                "unknown",
                "known",
            ]
        )
    )
    if name == "send":
        return name, (draw(st.lists(KINDS, min_size=1, max_size=8)), draw(st.sampled_from([0, 1, None])))
    if name == "wait":
        return name, draw(st.floats(0.1, TIMEOUT * 0.7))
    return name, draw(st.integers(0, 5))


def play(cluster: Cluster, flying: list[Batch], name: str, what: object) -> None:
    """One step; ``flying`` are the batches whose answers are outstanding."""
    if name == "send":
        assert isinstance(what, tuple)
        cluster.send(*what)
    elif name == "wait":
        assert isinstance(what, float)
        gone = cluster.wait(what)
        flying[:] = [batch for batch in flying if batch not in gone]
    elif name in {"known", "unknown"}:
        cluster.know_topic(name == "known")
    elif name == "request":
        flying += cluster.take(limit=1 + 3 * int(str(what)))
    elif flying:
        batch = flying.pop(int(str(what)) % len(flying))
        if name == "answer":
            cluster.answer(batch, cluster.arrive(batch))
        elif name == "lost":
            cluster.answer(batch, AGAIN)
        elif name == "unheard":
            arrived = cluster.arrive(batch)
            cluster.answer(batch, AGAIN if arrived.verdict is Verdict.WRITTEN else arrived)
        else:
            cluster.lose_identity(batch)


def finish(cluster: Cluster, flying: list[Batch]) -> None:
    """Everything works again: what is outstanding ends."""
    cluster.know_topic()
    for batch in flying:
        cluster.answer(batch, cluster.arrive(batch))
    for _ in range(1000):
        if not cluster.outstanding:
            return
        for batch in cluster.take():
            cluster.answer(batch, cluster.arrive(batch))
    raise AssertionError(f"{cluster.outstanding} sends never end")


def check(cluster: Cluster) -> None:
    """Each send was told once, each log is in order, and says what was told."""
    values = {value: partition for partition, log in enumerate(cluster.logs) for value in log}
    for log in cluster.logs:
        firsts = list(dict.fromkeys(log))
        assert firsts == sorted(firsts, key=int), "not in the order of sending"
        if not cluster.may_double:
            assert firsts == log, "written twice"
    for output in cluster.sent:
        if not fits(output):
            assert output.value not in values
    numbers = sorted(cluster.results)
    for first, after in itertools.pairwise([*numbers, len(cluster.sent)]):
        outputs, result = cluster.sent[first:after], cluster.results[first]
        if isinstance(result, ProduceFailed):
            assert result.passing or not all(fits(output) for output in outputs)
        else:
            for output, place in zip(outputs, result, strict=True):
                assert cluster.logs[place.partition][place.offset] == output.value
                assert output.partition in {None, place.partition}


@settings(max_examples=examples(400))
@given(st.lists(steps(), max_size=40))
def test_nothing_is_lost_doubled_or_out_of_order(script: list[tuple[str, object]]) -> None:
    """Whatever happens to requests: each send ends once; what was told to be written is, at its place; in each log
    outputs stand in the order of sending; only refused ones fail for good; nothing is written twice, unless a batch
    was given up whose fate is not known, or the broker forgot the producer."""
    cluster = Cluster(partitions=2)
    flying: list[Batch] = []
    for name, what in script:
        play(cluster, flying, name, what)
    finish(cluster, flying)
    assert sum(1 for _ in cluster.results) > 0 or not cluster.sent
    check(cluster)
