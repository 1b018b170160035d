"""The order of events: peers, broker, contests, measurements; results are written after each of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from rich.console import Console

from aioparallel.cli.bench import latency, maps, members, recovery
from aioparallel.cli.bench.cases import CaseSpec
from aioparallel.cli.bench.cluster import Cluster, broker_name, open_cluster
from aioparallel.cli.bench.contest import run_case
from aioparallel.cli.bench.contestants import builtin_contestants
from aioparallel.cli.bench.model import Case, Contestant, CreateTopic
from aioparallel.cli.bench.peers import find_peers
from aioparallel.cli.bench.progress import Board, boarding, steps_of
from aioparallel.cli.bench.report import markdown, plots, store
from aioparallel.cli.bench.report.facts import Facts, gather
from aioparallel.cli.bench.report.wording import GROUPS
from aioparallel.cli.bench.settings import MEASURED, Settings

__all__ = ["Bench"]

log = logging.getLogger(__name__)


class Measure(Protocol):
    """What the modules of (f) to (i) offer."""

    async def __call__(
        self,
        bootstrap_servers: str,
        create_topic: CreateTopic,
        scale: int,
        seed: int,
        progress: Callable[[str], None],
    ) -> list[Case]: ...


MEASURES: Final[Mapping[str, Measure]] = {
    "f": latency.measure,
    "g": maps.measure,
    "h": recovery.measure,
    "i": members.measure,
}


class Bench:
    """One call of the command. ``cases`` is what it has measured so far."""

    def __init__(self, settings: Settings, console: Console) -> None:
        self.cases: list[Case] = []
        self._settings = settings
        self._console = console
        self._contestants: dict[str, Contestant | str] = {}
        settings.output.mkdir(parents=True, exist_ok=True)
        self._results = store.read(settings.output)

    @property
    def failed(self) -> bool:
        """Whether a check did not hold, or something could not be measured. A peer that is missing is neither."""
        return any(
            case.problems or any(run.problems for entry in case.entries for run in entry.runs) for case in self.cases
        )

    def find_contestants(self) -> None:
        """Build the peers, the first time; blocks, for minutes perhaps."""
        found: dict[str, Contestant | str] = dict(builtin_contestants())
        if self._settings.peers:
            found |= find_peers(self._settings.peers, self.say)
        self._contestants = {name: one for name, one in found.items() if self._settings.takes_part(name)}

    async def run(self) -> None:
        """Everything. What is measured stays also when this is cancelled."""
        settings = self._settings
        name = broker_name(settings)
        facts = gather(broker=name, seed=settings.seed, rounds=settings.rounds, scale=settings.scale)
        try:
            async with open_cluster(settings, self.say) as cluster:
                with boarding(self._console, steps_of(settings)) as board:
                    for spec in settings.specs:
                        began = facts.now()
                        self._keep([await self._contest(spec, cluster, board)], began)
                    for letter in settings.measured:
                        began = facts.now()
                        self._keep(await self._measurement(letter, cluster, board), began)
        finally:
            self._draw()

    async def _contest(self, spec: CaseSpec, cluster: Cluster, board: Board) -> Case:
        board.say(f"{spec.name}: producing")
        try:
            return await run_case(
                spec,
                self._contestants,
                bootstrap_servers=cluster.bootstrap_servers,
                create_topic=cluster.create_topic,
                rounds=self._settings.rounds,
                seed=self._settings.seed,
                progress=board.run,
            )
        except Exception as error:
            # It must not take the other cases with it; it is said in the results, and the exit code tells.
            log.exception("case failed", extra={"case": spec.name})
            return Case(spec.group, spec.name, spec.title, problems=[f"not measured: {error!r}"])
        finally:
            board.over(spec.name)
            await cluster.clear()

    async def _measurement(self, letter: str, cluster: Cluster, board: Board) -> list[Case]:
        board.measurement(letter)
        settings = self._settings
        try:
            return await MEASURES[letter](
                cluster.bootstrap_servers, cluster.create_topic, settings.scale, settings.seed, board.say
            )
        except Exception as error:
            log.exception("measurement failed", extra={"group": letter})
            return [Case(letter, f"{letter}-failed", GROUPS[letter], problems=[f"not measured: {error!r}"])]
        finally:
            board.over(letter)
            await cluster.clear()

    def _keep(self, cases: list[Case], facts: Facts) -> None:
        """Write them down, with what the folder holds of other cases. A measurement replaces all of its group."""
        self.cases += cases
        replaced = {case.group for case in cases} & set(MEASURED)
        kept = [result for result in self._results if result.case.group not in replaced]
        self._results = store.merge(kept, [store.Result(case, facts) for case in cases])
        folder = self._settings.output
        store.write(self._results, folder)
        markdown.write(self._results, sorted(folder.glob("?-*.png")), folder)

    def _draw(self) -> None:
        """The plots last: while they are drawn nobody can measure."""
        if self.cases:
            folder = self._settings.output
            drawn = plots.draw([result.case for result in self._results], folder)
            markdown.write(self._results, drawn, folder)

    def say(self, sentence: str) -> None:
        """What takes long before anything runs."""
        self._console.print(sentence, markup=False, highlight=False)
