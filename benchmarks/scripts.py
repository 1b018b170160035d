"""Cases with a script: records at a constant rate (f), killed processes (h), and processes started together (i)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.offsets import decode_offset_map
from aioparallel.records.errors import AioparallelError
from aioparallel.records.record import TopicPartition
from aioparallel.testing.event_log import EventKind
from benchmarks.cases import Case
from benchmarks.checks import check_commits, check_events, check_lives
from benchmarks.contest import JOIN_TIMEOUT, Arena, Field, Player
from benchmarks.evidence import Evidence, Integers, written
from benchmarks.measures import OURS, Result
from benchmarks.programs import Contestant
from benchmarks.rounds import play
from benchmarks.workload import Lane, pace, read_back

__all__ = ["crash", "latency_figures", "members", "paced"]

RATE: Final = 20_000.0  # records a second
SECONDS: Final = 20.0  # of sending, the warm-up included
WARM_UP: Final = 2.0  # seconds
BACKLOG: Final = 500_000  # records
SHARES: Final = {"p50": 500, "p99": 990, "p999": 999, "max": 1_000}
"""Thousandths."""
STUCK: Final = 100  # offset
WORK_TIMEOUT: Final = 60.0  # seconds until everything possible is done, and for the recovery
POLL: Final = 0.005  # seconds


@asynccontextmanager
async def playing(contestant: Contestant | str, place: Field, **changes: Any) -> AsyncIterator[Player]:
    """A contestant's process for the length of the block. Raises AioparallelError if it is missing."""
    if isinstance(contestant, str):
        raise AioparallelError(contestant)
    player = Player(contestant, place, **changes)
    try:
        yield player
    finally:
        await player.stop(at_once=True)


async def paced(case: Case, arena: Arena) -> Result:
    """Records at a constant rate to a consumer that has joined. A scale shortens the 20 seconds of sending, to at least
    a second after the warm-up."""
    rate, figures = RATE, dict[str, Any]()
    if case.name == "f-half":
        shape = replace(case.shape, records=BACKLOG // arena.scale)
        (backlog,) = await play([replace(case, shape=shape)], replace(arena, rounds=0, seconds=0.0))
        if backlog.failed:
            return backlog
        figures["highest_rate"] = float(round(backlog.entries[0].runs[0].rate))
        rate = figures["highest_rate"] / 2
    seconds = WARM_UP + max(1.0, (SECONDS - WARM_UP) / arena.scale)
    shape = replace(case.shape, records=round(rate * seconds))
    async with (
        Field.of(replace(case, shape=shape), arena, filled=False) as place,
        playing(arena.contestants[OURS], place) as player,
    ):
        servers, topic, workload = place.work.bootstrap_servers, place.work.topic, place.workload
        await player.order(0, topic)
        await player.joined(shape.partitions)
        arena.say(f"{case.name}: {rate:,.0f} records/s for {seconds:.0f} s")
        given_up = threading.Event()
        try:
            sent = await asyncio.to_thread(pace, servers, topic, workload, rate, given_up.is_set)
            await player.answer(0, WORK_TIMEOUT)
        finally:
            given_up.set()
        await asyncio.to_thread(read_back, servers, topic, workload)
        seen = await asyncio.to_thread(Evidence.read, player.events)
        place.result.problems += await asyncio.to_thread(check_events, seen, workload, "key")
        if place.result.problems:
            return place.result
        arrivals = Evidence.read(Path(f"{player.events}.arrivals"))
        figures |= latency_figures(seen, arrivals, sent.sent, rate)
        figures["producer_latest_ms"] = round(sent.latest * 1e3, 3)
        place.result.figures |= figures
        return place.result


def latency_figures(seen: Evidence, arrivals: Evidence, sent: list[Integers], rate: float) -> dict[str, Any]:
    """Rates in records/s and latencies in ms, the warm-up separately.

    ``arrivals``: for each fetch the last offset that it returned of a partition. ``sent``: nanoseconds by partition and
    offset.
    """
    found: dict[str, Any] = {"rate_asked": round(rate)}
    rows, came = (np.stack([one.partitions, one.offsets, one.times], axis=1)[one.began] for one in (seen, arrivals))
    parts = [rows[rows[:, 0] == partition] for partition in range(len(sent))]
    ends = [came[came[:, 0] == partition] for partition in range(len(sent))]
    # The first fetch that ended at or after the record.
    arrived = [end[np.searchsorted(end[:, 1], part[:, 1]), 2] for part, end in zip(parts, ends, strict=True)]
    produced = np.concatenate([times[part[:, 1]] for part, times in zip(parts, sent, strict=True)])
    began = np.concatenate([part[:, 2] for part in parts])
    late = produced - produced.min() >= WARM_UP * 1e9
    warm = produced[late]
    if len(warm) > 1:
        found["rate_seen"] = round(float((len(warm) - 1) / ((warm.max() - warm.min()) / 1e9)))
    for name, since in (("arrival_to_handler", np.concatenate(arrived)), ("produce_to_handler", produced)):
        found |= percentiles(name, (began - since)[late])
        found |= percentiles(f"warm_up_{name}", (began - since)[~late])
    return found


def percentiles(name: str, nanoseconds: Integers) -> dict[str, float]:
    """Median, 99th and 99.9th percentile and maximum in ms, as ``<name>_p50_ms`` and so on; empty without values.

    By nearest rank: each is an observed latency, and at least that part of all latencies does not exceed it.
    """
    if not len(nanoseconds):
        return {}
    ordered = np.sort(nanoseconds)
    # The rank is rounded up.
    ranks = {share: -(-len(ordered) * thousandths // 1_000) for share, thousandths in SHARES.items()}
    return {f"{name}_{share}_ms": round(int(ordered[rank - 1]) / 1e6, 3) for share, rank in ranks.items()}


class Commit(NamedTuple):
    """A group's committed offset, and the number of records that it and its map mark as complete."""

    offset: int
    complete: int


async def crash(case: Case, arena: Arena) -> Result:
    """Kills each contestant behind one stuck record and starts it again. The figure ``contestants`` has a row for
    each."""
    async with Field.of(case, arena) as place:
        result, rows = place.result, list[dict[str, Any]]()
        result.figures |= {"stuck_offset": STUCK, "contestants": rows}
        for name in case.contestants:
            contestant = arena.contestants[name]
            arena.say(f"{case.name}: {name}")
            try:
                async with committed_by(place, f"{place.work.topic}-{name}") as committed:
                    figures, problems = await killed_and_recovered(place, contestant, committed)
            except (AioparallelError, TimeoutError) as error:
                figures, problems = {}, [str(error) or f"not done within {WORK_TIMEOUT:g} s"]
            title = contestant if isinstance(contestant, str) else contestant.title
            rows.append({"contestant": name, "title": title, **figures})
            result.problems += [f"{name}: {problem}" for problem in problems]
        return result


async def killed_and_recovered(
    place: Field, contestant: Contestant | str, committed: Callable[[], Awaitable[Commit]]
) -> tuple[dict[str, Any], list[str]]:
    """Returns figures and problems."""
    keys, group = place.workload.keys_by_offset[0], f"{place.work.topic}-{getattr(contestant, 'name', '')}"
    in_order = isinstance(contestant, Contestant) and contestant.keeps_key_order
    done = len(keys) - 1 - (keys[STUCK + 1 :].count(keys[STUCK]) if in_order else 0)
    known = done if in_order else STUCK
    async with playing(contestant, place, stuck=STUCK) as player, asyncio.timeout(WORK_TIMEOUT):
        await player.order(0, group)
        while written(player.events) < 2 * done + 1 or (await committed()).complete < known:
            still_running(player)
            await asyncio.sleep(4 * POLL)
        assert player.child is not None
        await player.child.kill()
        first = Evidence.read(player.events)
    restarted, began = time.monotonic(), None
    async with playing(contestant, place) as player, asyncio.timeout(WORK_TIMEOUT):
        await player.order(1, group)
        while (await committed()).offset < len(keys):
            still_running(player)
            if began is None and written(player.events):
                began = time.monotonic()
            await asyncio.sleep(4 * POLL)
        over = time.monotonic()
    second = Evidence.read(player.events)
    again = np.intersect1d(first.offsets[first.kinds == EventKind.ENDED], second.offsets[second.began])
    figures = {
        "repeated": len(again),
        "seconds_to_recover": round(over - restarted, 3),
        "seconds_from_first_handler": round(over - (began or restarted), 3),
    }
    order: Lane = "key" if in_order else "unordered"
    return figures, check_lives([first, second], place.workload, order)


def still_running(player: Player) -> None:
    """Raises AioparallelError if the process has ended by itself."""
    if player.ended:
        assert player.child is not None
        raise AioparallelError(
            f"it ended by itself, with exit code {player.child.exit_code}{player.child.last_words()}"
        )


@asynccontextmanager
async def committed_by(place: Field, group: str) -> AsyncIterator[Callable[[], Awaitable[Commit]]]:
    """A function that asks the broker what the group has committed."""
    partition = TopicPartition(place.work.topic, 0)
    async with Admin(place.work.bootstrap_servers) as admin:

        async def committed() -> Commit:
            found = (await admin.committed(group, [partition])).get(partition)
            if found is None:
                return Commit(-1, 0)
            decoded = decode_offset_map(found.offset, found.metadata)
            return Commit(found.offset, decoded.highest_succeeded + 1 - len(decoded.incompletes))

        yield committed


async def members(case: Case, arena: Arena) -> Result:
    """Processes of one group join while paused, until each has its share of the partitions; then all start at once. The
    time from then to the last handler counts, so it includes time in which a member has finished its share."""
    async with Field.of(case, arena) as place:
        for name, handler in (("sleep", "sleep"), ("noop", "return")):
            arena.say(f"{case.title}, {'10 ms' if name == 'sleep' else 'no-op'} handlers")
            try:
                figures, problems = await together(place, handler, f"{place.work.topic}-{name}")
            except (AioparallelError, TimeoutError) as error:
                figures, problems = {}, [str(error) or f"not done within {WORK_TIMEOUT:g} s"]
            place.result.figures |= {f"{figure}_{name}": value for figure, value in figures.items()}
            place.result.problems += [f"{name}: {problem}" for problem in problems]
        return place.result


async def together(place: Field, handler: str, group: str) -> tuple[dict[str, Any], list[str]]:
    """``rate`` (records/s of all members), ``shares`` (records of each), ``repeated`` (records handled again)."""
    case, records = place.case, place.work.records
    async with AsyncExitStack() as stack:
        ours = place.arena.contestants[OURS]
        players = [await stack.enter_async_context(playing(ours, place, handler=handler)) for _ in range(case.members)]
        for player in players:
            await player.order(0, group)
        await shared(players, case.shape.partitions // case.members)
        events = records * (2 if handler == "sleep" else 1)
        went = time.monotonic()
        for player in players:
            await say(player, "go")
        async with asyncio.timeout(WORK_TIMEOUT):
            while sum(written(player.events) for player in players) < events:
                for player in players:
                    still_running(player)
                await asyncio.sleep(POLL)
        seconds = time.monotonic() - went
        for player in players:
            await say(player, "stop")
        for player in players:
            await player.answer(0, WORK_TIMEOUT)
        lives = [Evidence.read(player.events) for player in players]
    problems = check_lives(lives, place.workload, "key", ends=players[0].ends, together=True)
    problems += await check_commits(place.work.bootstrap_servers, place.work.topic, group, place.workload)
    shares = [int(life.began.sum()) for life in lives]
    return {"rate": round(records / seconds), "shares": shares, "repeated": sum(shares) - records}, problems


async def say(player: Player, word: str) -> None:
    """Send a line to its process."""
    assert player.child is not None
    await player.child.say(word)


async def shared(players: list[Player], share: int) -> None:
    """Wait until each has its share of the partitions. Raises AioparallelError."""
    held = [0] * len(players)
    every = asyncio.Event()

    async def listen(number: int) -> None:
        while not every.is_set():
            held[number] = (await players[number].told(JOIN_TIMEOUT)).get("open", 0)
            if all(one == share for one in held):
                every.set()

    listening = [asyncio.create_task(listen(number)) for number in range(len(players))]
    waiting = asyncio.create_task(every.wait())
    try:
        done, _ = await asyncio.wait([waiting, *listening], timeout=JOIN_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
        if not every.is_set():
            raise AioparallelError(f"the members did not share the partitions within {JOIN_TIMEOUT:g} s, but {held}")
    finally:
        for task in (waiting, *listening):
            task.cancel()
        await asyncio.wait([waiting, *listening])
