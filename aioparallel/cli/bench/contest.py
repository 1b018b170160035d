"""Runs one case: every contestant, round by round, one at a time, each run checked."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from aioparallel.cli.bench.cases import UNCHECKED, CaseSpec
from aioparallel.cli.bench.check import Expected, check_commits, check_evidence
from aioparallel.cli.bench.filling import fill
from aioparallel.cli.bench.model import Case, Contestant, CreateTopic, Entry, Run, Work
from aioparallel.cli.bench.program import Program, ProgramFailed, Reaper
from aioparallel.cli.bench.workload import Workload
from aioparallel.errors import AioparallelError

__all__ = ["Progress", "run_case"]

Progress = Callable[[CaseSpec, str, int], None]

GRACE: Final = 60.0
"""Seconds beyond the work's limit that a program has to join its group, to close, and to write its evidence."""


async def run_case(
    spec: CaseSpec,
    contestants: Mapping[str, Contestant | str],
    *,
    bootstrap_servers: str,
    create_topic: CreateTopic,
    rounds: int,
    seed: int,
    progress: Progress,
) -> Case:
    """Run a case on a topic of its own: one cold round (0), then ``rounds`` warm ones, in the same processes.

    ``contestants``: by name; a text in place of one says why it is missing. Only those that ``spec`` names are looked
    up, and of them those that are not in it are left out without a word. The order changes with each round, so that
    nobody always runs after the same one. A contestant that failed, or was stopped at the limit, in round 0 runs no
    more than one further round; one whose process ended runs no more: another process would start cold.

    ``progress`` is told case, contestant and round before each run, and also for those that are left out, so each
    contestant that is not missing is heard of ``rounds + 1`` times.

    When the topic cannot be filled, the case has a problem and no runs. Cancelling it ends all processes.
    """
    entries = [
        Entry(name, found.title) if isinstance(found, Contestant) else Entry(name, name, missing=found)
        for name in spec.contestants
        if (found := contestants.get(name)) is not None
    ]
    case = Case(spec.group, spec.name, spec.title, spec.shape.records, spec.concurrency, entries=entries)
    with tempfile.TemporaryDirectory(prefix="aioparallel-bench-") as name, Reaper() as reaper:
        folder = Path(name)
        try:
            workload, work = await prepare(spec, folder, bootstrap_servers, create_topic, seed)
        except (AioparallelError, TimeoutError) as error:
            case.problems.append(f"there were no records to run on: {error}")
            return case
        case.bound = workload.bound(spec.ordering, spec.concurrency)
        players = [
            Player(found, entry, spec, work, workload, folder, reaper)
            for entry in entries
            if isinstance(found := contestants[entry.contestant], Contestant)
        ]
        try:
            for number in range(rounds + 1):
                first = number % max(len(players), 1)
                for player in players[first:] + players[:first]:
                    progress(spec, player.entry.contestant, number)
                    await player.play(number)
        finally:
            await asyncio.gather(*(player.program.stop() for player in players))
    return case


async def prepare(
    spec: CaseSpec, folder: Path, bootstrap_servers: str, create_topic: CreateTopic, seed: int
) -> tuple[Workload, Work]:
    """Make the records, produce them to a new topic, and write down for the contestants what to do."""
    workload = await asyncio.to_thread(spec.shape.workload, seed)
    plan = folder / "plan"
    plan.mkdir()
    workload.write_plan(plan)
    topic = f"bench-{spec.name}-{uuid.uuid4().hex[:8]}"
    await create_topic(topic, spec.shape.partitions)
    await fill(bootstrap_servers, topic, workload)
    work = Work(
        bootstrap_servers=bootstrap_servers,
        topic=topic,
        partitions=spec.shape.partitions,
        records=spec.shape.records,
        ordering=spec.ordering,
        concurrency=spec.concurrency,
        sleeps=spec.shape.sleeps,
        plan=str(plan),
        limit=spec.limit,
    )
    work.write(folder / "work.json")
    return workload, work


class Player:
    """A contestant in one case: its process, and what came of its runs."""

    def __init__(
        self,
        contestant: Contestant,
        entry: Entry,
        spec: CaseSpec,
        work: Work,
        workload: Workload,
        folder: Path,
        reaper: Reaper,
    ) -> None:
        self.entry = entry
        self.program = Program(contestant, folder / "work.json", folder / f"{contestant.name}.log", reaper)
        self._work = work
        self._workload = workload
        self._folder = folder
        self._checked = contestant.name not in UNCHECKED
        keeps_order = contestant.keeps_key_order and spec.ordering != "unordered"
        self._order = spec.ordering if keeps_order else "unordered"
        self._rounds_left: int | None = None

    async def play(self, number: int) -> None:
        """One run, if this contestant still takes part."""
        if self._rounds_left == 0 or self.program.ended:
            return
        run = await self._run(number)
        self.entry.runs.append(run)
        if number == 0 and (run.stopped or run.problems):
            self._rounds_left = 1
        elif self._rounds_left is not None:
            self._rounds_left -= 1

    async def _run(self, number: int) -> Run:
        group = f"{self._work.topic}-{self.entry.contestant}-{number}"
        evidence = self._folder / group
        evidence.mkdir()
        try:
            run = await self.program.run(number, group, evidence, self._work.limit + GRACE)
            problems = await self._check(run, group, evidence) if self._checked else ()
        except ProgramFailed as error:
            return Run(number, 0.0, 0.0, 0, 0.0, 0, problems=(str(error),))
        finally:
            shutil.rmtree(evidence)
        return replace(run, problems=problems)

    async def _check(self, run: Run, group: str, evidence: Path) -> tuple[str, ...]:
        expected = Expected(self._workload.keys, self._work.sleeps, self._order, stopped=run.stopped)
        problems = await asyncio.to_thread(check_evidence, evidence, expected)
        if not run.stopped:
            if run.ended != self._work.records:
                problems.append(f"it says that {run.ended:,} of {self._work.records:,} records ended")
            problems += await check_commits(self._work, group)
        return tuple(problems)
