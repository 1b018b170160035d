"""The producer as a whole on three nodes, with chance deciding what happens to them and to each request. In virtual
time."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from aioparallel.records.errors import ProduceFailed
from aioparallel.testing.memory import ErrorCode, Fault, Request
from tests.support.examples import examples
from tests.support.memory.producer_world import NODES, PARTITIONS, Step, World
from tests.support.virtual_time import VirtualLoop

LOST = [Fault(is_response_lost=True), Fault(is_request_lost=True)]
PASSING = [
    *(Fault(error=ErrorCode.NOT_ENOUGH_REPLICAS), Fault(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)),
    # Written, and refused all the same.
    Fault(error=ErrorCode.REQUEST_TIMED_OUT, is_carried_out=True),
    Fault(error=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, is_carried_out=True),
]
# Not INVALID_PRODUCER_EPOCH: only a broker that knows a newer epoch says so, and it refuses what comes late as well.
# The step "fence" makes it one.
REFUSING = [
    *(Fault(error=ErrorCode.MESSAGE_TOO_LARGE), Fault(error=ErrorCode.INVALID_RECORD)),
    Fault(error=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    *(Fault(error=ErrorCode.UNKNOWN_SERVER_ERROR), Fault(error=ErrorCode.UNKNOWN_SERVER_ERROR, is_carried_out=True)),
    Fault(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED),
]
DELAYS = [0.1, 0.7, 2.5, 4.0, 8.0]
SIDEWAYS = [Request.METADATA, Request.IDENTIFY, Request.CONNECT]
ON_THE_SIDE = [*LOST, Fault(response_delay=2.5), Fault(error=ErrorCode.REQUEST_TIMED_OUT)]
REFUSALS = {"deny", "limit", "compact", "fence"}

TROUBLE = [
    *("lost", "late", "slow", "passing", "refused", "node is slow", "node is deaf"),
    *("side", "no side", "deny", "limit", "compact", "down", "move", "hang", "fail over", "stop_node", "fence"),
]
END_OF = {
    "node is slow": "heal",
    "node is deaf": "heal",
    "no side": "side heals",
    "deny": "allow",
    "limit": "no limit",
    "compact": "keep",
    "down": "back",
    "hang": "unhang",
    "fail over": "unhang",
    "stop_node": "start_node",
}


class Script(NamedTuple):
    """``is_started``: connected before the trouble begins. ``is_stopped_early``: closed amid it, else after all is well
    again. ``sends_again``: see :class:`World`."""

    is_started: bool
    sends_again: bool
    delivery_timeout: float
    request_timeout: float
    is_stopped_early: bool
    steps: list[Step]


OUTPUTS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", None]), st.sampled_from([0, 0, 1, 2, 3, None, None]), st.just(False))
    | st.tuples(st.just(b"a"), st.just(0), st.booleans()),
    min_size=1,
    max_size=4,
)
NODE = st.integers(0, NODES - 1)


def faults(of: list[Fault], request: Request = Request.PRODUCE) -> st.SearchStrategy[Step]:
    return st.sampled_from(of).map(lambda fault: Step("fault", request=request, fault=fault))


STEPS: dict[str, st.SearchStrategy[Step]] = {
    "send": OUTPUTS.map(lambda outputs: Step("send", outputs=tuple(outputs))),
    "wait": st.sampled_from([0.0, 0.2, 0.5, 1.5, 3.0, 7.0, 13.0]).map(lambda s: Step("wait", seconds=s)),
    "lost": faults(LOST),
    "late": faults([Fault(request_delay=seconds) for seconds in DELAYS]),
    "slow": faults([Fault(response_delay=seconds) for seconds in DELAYS]),
    "passing": faults(PASSING),
    "refused": faults(REFUSING),
    "side": st.sampled_from(SIDEWAYS).flatmap(lambda request: faults(ON_THE_SIDE, request)),
    "no side": st.sampled_from(SIDEWAYS).map(
        lambda request: Step("trouble", request=request, fault=Fault(is_request_lost=True))
    ),
    "side heals": st.sampled_from(SIDEWAYS).map(lambda request: Step("heal", request=request)),
    "node is slow": NODE.map(lambda node: Step("trouble", node + 1, fault=Fault(response_delay=4.0))),
    "node is deaf": NODE.map(lambda node: Step("trouble", node + 1, fault=Fault(is_response_lost=True))),
    "fail over": st.builds(lambda node, s: Step("fail over", node, s), NODE, st.sampled_from([0.0, 1.5, 4.0, 8.0])),
    "move": st.integers(0, PARTITIONS * NODES - 1).map(lambda number: Step("move", number)),
}


def steps(name: str) -> st.SearchStrategy[Step]:
    """Those of this name."""
    return STEPS[name] if name in STEPS else NODE.map(lambda node: Step(name, node))


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """A few kinds of trouble at a time: with all of them in each script the rare ones hardly meet."""
    kinds = draw(st.lists(st.sampled_from(TROUBLE), min_size=1, max_size=5, unique=True))
    ends = [END_OF[kind] for kind in kinds if kind in END_OF]
    names = [*["send", "send", "wait"] * len(kinds), *kinds * 2, *ends]
    least = draw(st.sampled_from([0, 30, 45]))  # the lists that hypothesis makes by itself are short
    return Script(
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from([3.0, 6.0, 20.0, 120.0])),
        draw(st.sampled_from([1.0, 30.0])),
        draw(st.booleans()),
        draw(st.lists(st.sampled_from(names).flatmap(steps), min_size=least, max_size=60)),
    )


async def play(script: Script) -> None:
    """The script, then the checks."""
    world = World(script.delivery_timeout, script.request_timeout, sends_again=script.sends_again)
    if script.is_started:
        await world.producer.start(1.0)
    for step in script.steps:
        await world.play(step)
    may_be_refused = any(is_refusal(step) for step in script.steps)
    if not script.is_stopped_early:
        await comes_round(world)
    world.check_failures(may_be_refused=may_be_refused)
    await stops(world)
    await world.heal()
    await asyncio.sleep(60.0)  # for what arrives late
    world.check()


def is_refusal(step: Step) -> bool:
    return step.name in REFUSALS or step.fault in REFUSING


async def comes_round(world: World) -> None:
    """Once everything works again nothing waits for longer than a request does, and new outputs are written at once."""
    await world.heal()
    assert await world.ends(world.answer_timeout + 15.0), "a stall"
    await asyncio.sleep(world.answer_timeout + 15.0)
    world.check()
    if world.is_fenced:
        # The first output that hears of it may fail: where its leader has moved as well, its first attempt is in doubt.
        await is_written_at_once(world)
    assert await is_written_at_once(world)
    assert (world.producer.outputs(), world.producer.problems()) == ((), ())


async def is_written_at_once(world: World) -> bool:
    """Whether something new to each partition is."""
    before = set(world.ended)
    for partition in [*range(PARTITIONS), None]:
        await world.play(Step("send", outputs=((b"a", partition, False), (b"b", partition, False))))
    assert await world.ends(2.5), "a stall of what is new"
    new = [result for first, (_, result) in world.ended.items() if first not in before]
    return not [result for result in new if isinstance(result, ProduceFailed)]


async def stops(world: World) -> None:
    """In time, with everything ended and no task left."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await world.producer.stop(2.0)
    assert loop.time() - began < 3.1
    assert len(world.ended) == len(world.began), "some sends never end"
    assert asyncio.all_tasks() == {asyncio.current_task()}


@settings(max_examples=examples(100))
@given(scripts())
def test_acknowledged_means_written_once_and_in_order(script: Script) -> None:
    """Whatever becomes of requests, nodes, leaders and metadata: each send ends once and in time; what is acknowledged
    stands in the log at its place, once; each log is in the order of sending, with nothing twice; when the trouble is
    over nothing waits; a stopped producer leaves nothing behind."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play(script))
