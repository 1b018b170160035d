"""What must be true when it is over: nothing is left, and the outputs stand as they were acknowledged."""

from __future__ import annotations

from aioparallel.records.record import Outgoing

from .behaviours import run_of
from .stage import GROUP, Stage
from .truth import Place

__all__ = ["look_at_outputs", "look_at_what_is_left"]


def look_at_what_is_left(stage: Stage) -> None:
    violated = stage.truth.violated
    for handle in stage.timers:
        handle.cancel()
    running = [run.place for runs in stage.truth.running.values() for run in runs if not run.has_returned]
    if running:
        violated(f"handlers still run: {list(map(str, running))}")
    for what, names in (("task", stage.loop.tasks()), ("timer", stage.loop.timers())):
        for name in names:
            violated(f"a {what} is left: {name}")
    if stage.open_resources:
        violated(f"{stage.open_resources} resources are not closed")
    group = stage.broker.group(GROUP)
    group.advance(stage.loop.time())
    for node in stage.broker.numbers:
        if count := stage.broker.connections(node):
            violated(f"{count} connections to node {node} are left")


def look_at_outputs(stage: Stage) -> None:
    """What is acknowledged stands where it was told to, once; outputs of a lane keep its order."""
    violated = stage.truth.violated
    first: dict[tuple[int, int], None] = {}
    stood: dict[int, dict[Place, None]] = {}
    for record in stage.broker.records("out"):
        named = run_of(Outgoing("out", record.value))
        assert named is not None
        if named in first:
            violated(f"output {named} stands twice in the log")
        first[named] = None
        run = stage.truth.runs[named[0]]
        if record.key is not None:  # those without go anywhere
            stood.setdefault(record.partition, {}).setdefault(run.place)
        told = run.acknowledged.get(named[1])
        if told is not None and (told.partition, told.offset) != (record.partition, record.offset):
            violated(f"output {named} stands at {record}, not at {told}")
    for run in stage.truth.runs:
        for index in run.acknowledged:
            if (run.number, index) not in first:
                violated(f"output {index} of {run.place} #{run.number} was acknowledged and is not in the log")
    for places in stood.values():
        _check_order(stage, list(places))


def _check_order(stage: Stage, places: list[Place]) -> None:
    latest: dict[int, Place] = {}
    for place in places:
        lane = stage.truth.lane_of(place)
        if lane is None or place not in stage.truth.over_by_outputs:
            continue
        before = latest.get(id(lane))
        if before is not None and before.offset > place.offset:
            stage.truth.violated(f"the outputs of {before} stand before those of {place}")
        latest[id(lane)] = place
