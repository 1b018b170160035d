"""Prepares a case, and runs and checks a contestant's process."""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from aioparallel.records.errors import AioparallelError
from aioparallel.testing.processes.child import Child
from benchmarks.answers import Watch, run_of, unbelievable
from benchmarks.cases import Case
from benchmarks.checks import check_commits, check_events, check_output
from benchmarks.contestant import Work
from benchmarks.evidence import Evidence
from benchmarks.machine import Machine
from benchmarks.measures import Result, Run
from benchmarks.programs import Contestant
from benchmarks.workload import Lane, Workload, fill_topic

__all__ = ["Arena", "Field", "Player", "ProgramFailed"]

GRACE: Final = 60.0
"""Seconds that a program has beyond the work's limit to join its group, close and write its log."""
JOIN_TIMEOUT: Final = 60.0


class ProgramFailed(AioparallelError):
    """A contestant's program has not completed its run."""


@dataclass(slots=True)
class Arena:
    """What cases need: a broker, a function that creates topics, and contestants by name; a text instead of one says
    why it is missing. ``scale``: divisor of record counts. ``say`` prints progress.

    ``rounds``: least number of warm rounds. ``width``: more follow until the interval of each watched ratio is narrower
    (0.03 is 3 %), for at most ``seconds`` a case. ``cpu``: see ``Work.cpu``.
    """

    bootstrap_servers: str
    create_topic: Callable[[str, int], Awaitable[None]]
    contestants: Mapping[str, Contestant | str]
    rounds: int
    seed: int
    scale: int
    say: Callable[[str], None]
    width: float
    seconds: float
    cpu: int | None = None


@dataclass(slots=True)
class Field:
    """A prepared case: a topic with its records, and the work for contestants."""

    arena: Arena
    case: Case
    folder: Path
    workload: Workload
    work: Work
    result: Result
    logs: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    @asynccontextmanager
    async def of(cls, case: Case, arena: Arena, *, filled: bool = True) -> AsyncIterator[Field]:
        """Create the records and a topic with them, and write the files for contestants. Raises AioparallelError if the
        topic cannot be filled."""
        with tempfile.TemporaryDirectory(prefix="aioparallel-bench-") as name:
            folder, topic = Path(name), f"bench-{case.name}-{uuid.uuid4().hex[:8]}"
            workload = await asyncio.to_thread(case.shape.workload, arena.seed)
            workload.write_sleeps(folder / "sleeps")
            work = Work(
                arena.bootstrap_servers, topic, case.shape.partitions, case.shape.records, case.ordering,
                case.concurrency, case.handler, str(folder / "sleeps"), case.limit,
                "rounds" if case.script == "maps" else case.script, batch=case.batch,
            )  # fmt: skip
            at_once = case.concurrency * (case.batch or 1)
            bound = workload.bound(case.ordering, at_once) if case.script == "rounds" else None
            result = Result(case.group, case.name, case.title, case.shape.records, case.concurrency, bound)
            try:
                await arena.create_topic(topic, case.shape.partitions)
                if filled:
                    await fill_topic(arena.bootstrap_servers, topic, workload)
            except (AioparallelError, TimeoutError) as error:
                raise AioparallelError(f"there were no records to run on: {error}") from error
            yield cls(arena, case, folder, workload, work, result)

    def order_of(self, contestant: Contestant) -> Lane:
        """The order that a contestant promises."""
        return self.case.ordering if contestant.keeps_key_order else "unordered"


class Player:
    """A contestant's process for all rounds of a case. The first run starts it, so that it disturbs no other run."""

    def __init__(self, contestant: Contestant, place: Field, **changes: Any) -> None:
        self.contestant = contestant
        self._number = number = next(place.logs)
        self.log = place.folder / f"{number}.log"
        """Standard error of its process."""
        self.events = place.folder / f"{number}.events"
        """The event log of its current round."""
        self._place = place
        self._work = replace(place.work, **changes)
        self._file = place.folder / f"{number}.json"
        self.child: Child | None = None

    @property
    def ended(self) -> bool:
        """Whether it was started and has ended."""
        return self.child is not None and not self.child.running

    async def start(self) -> None:
        """Start the process unless it runs."""
        if self.child is None:
            self._work.write(self._file)
            command = (*self.contestant.command, str(self._file))
            child = Child(self.contestant.name, command, log=self.log, environment=self.contestant.environment)
            await child.start()
            self.child = child

    async def order(self, number: int, group: str, output: str | None = None) -> None:
        """Tell it to begin a round."""
        await self.start()
        assert self.child is not None
        self.events.unlink(missing_ok=True)
        await self.child.say(json.dumps({"round": number, "group": group, "log": str(self.events), "output": output}))

    async def joined(self, partitions: int) -> None:
        """Wait until it has so many partitions."""
        while (await self.told(JOIN_TIMEOUT)).get("open") != partitions:
            pass

    async def told(self, timeout: float) -> dict[str, Any]:
        """Its next message. Raises ProgramFailed, or ChildFailed if it ends or sends nothing in time."""
        assert self.child is not None  # ordered before
        line = await self.child.line(timeout)
        try:
            content = json.loads(line)
            if not isinstance(content, dict):
                raise TypeError(f"it is a {type(content).__name__}")
        except (ValueError, TypeError) as error:
            words = self.child.last_words()
            raise ProgramFailed(f"its answer is not understood ({error}): {line[:200]!r}{words}") from error
        if "error" in content:
            raise ProgramFailed(f"its run failed: {content['error']}{self.child.last_words()}")
        return content

    async def answer(self, number: int, timeout: float) -> Run:
        """The result of a round; messages about partitions are skipped."""
        while "open" in (content := await self.told(timeout)):
            pass
        try:
            run = run_of(content)
        except ValueError as error:
            raise ProgramFailed(f"its answer is not understood: {error}") from error
        if run.round != number:
            raise ProgramFailed(f"it answered for round {run.round} when asked for round {number}")
        return run

    async def stop(self, *, at_once: bool = False) -> None:
        """End it by closing its standard input, and by force after some seconds."""
        if self.child is not None:
            await self.child.stop(0.0 if at_once else 5.0)

    async def run(self, number: int) -> Run:
        """Run and check a round. Failures become problems of the run."""
        place, work = self._place, self._work
        group, deadline = f"{work.topic}-{self._number}-{self.contestant.name}-{number}", work.limit + GRACE
        output = f"{group}-out" if work.handler in ("produce", "transactions") else None
        try:
            if output is not None:
                await place.arena.create_topic(output, work.partitions)
            watch = Watch(self.events, work.records * (1 + self.ends))
            machine = await asyncio.to_thread(Machine, work.cpu)
            await self.order(number, group, output)
            looking = asyncio.create_task(watch.look())
            try:
                run = await self.answer(number, deadline)
                watch.over()
            finally:
                looking.cancel()
            run = replace(run, machine=await asyncio.to_thread(machine.seen))
            seen = await asyncio.to_thread(Evidence.read, self.events)
            problems = await self._problems(run, group, seen, watch)
            if output is not None and not run.stopped:
                order = place.order_of(self.contestant)
                problems += await asyncio.to_thread(check_output, work.bootstrap_servers, output, place.workload, order)
        except (AioparallelError, TimeoutError) as error:
            if self.child is not None and not isinstance(error, ProgramFailed):
                await self.child.stop(0.0)  # its further work must not disturb others
            return Run(number, 0.0, 0.0, 0, 0.0, 0, problems=(str(error),))
        finally:
            self.events.unlink(missing_ok=True)
        peak = seen.peak_in_flight if work.handler == "sleep" and self.contestant.reads else None
        return replace(run, problems=tuple(problems), peak_in_flight=peak)

    @property
    def ends(self) -> bool:
        """Whether its log has the ends of handlers; handlers that return at once log only their beginning."""
        return self._work.handler == "sleep" or self._work.script in ("pace", "crash")

    async def _problems(self, run: Run, group: str, seen: Evidence, watch: Watch) -> list[str]:
        place, work, ends = self._place, self._work, self.ends
        order, reads = place.order_of(self.contestant), self.contestant.reads
        held = int((seen.began != ends).sum()) if reads else None
        found = list(unbelievable(run, held, work, place.workload, order, watch))
        if reads:
            found += await asyncio.to_thread(
                check_events, seen, place.workload, order, ends=ends, missing=run.stopped, cut=run.stopped
            )
            if not run.stopped and work.handler != "map":
                found += await check_commits(work.bootstrap_servers, work.topic, group, place.workload)
        return found
