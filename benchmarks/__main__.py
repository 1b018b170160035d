"""``python -m benchmarks``: runs cases, checks them, and writes results after each. See README.md.

``python -m benchmarks compare REV [REV]`` compares two commits.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markdown import Markdown

from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.jvm.sets import KAFKA_VERSION
from aioparallel.records.errors import AioparallelError
from aioparallel.testing import LocalKafka
from benchmarks import blocks, pages, plots, report
from benchmarks.cases import GROUPS, Case, chosen, sets
from benchmarks.compare import command, instructions
from benchmarks.compare.revisions import Revision
from benchmarks.contest import Arena
from benchmarks.facts import gather
from benchmarks.maps import maps
from benchmarks.measures import OURS, Result
from benchmarks.pages import RESULTS
from benchmarks.programs import CONTESTANTS, PEERS, ROOT, Contestant, find_peers
from benchmarks.rounds import play
from benchmarks.scripts import crash, members, paced
from benchmarks.shell import HEAP, INTERRUPTED, TIMEOUT, end_on_sigterm
from benchmarks.topics import Topics

log = logging.getLogger(__name__)

QUICK_SCALE: Final = 20
COUNTED: Final = "ajl"
"""Groups for which instructions per record are counted, without Kafka."""
ROUNDS: Final = 6
WIDTH: Final = 3.0
"""Percent."""

SCRIPTS: Final[dict[str, Callable[[Case, Arena], Awaitable[Result]]]] = {
    "pace": paced,
    "crash": crash,
    "members": members,
    "maps": maps,
}


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=(__doc__ or "").replace("``", ""))
    letters = "; ".join(f"{letter}: {title}" for letter, title in GROUPS.items())
    parser.add_argument("--cases", default="".join(GROUPS), help=f"letters of the groups of cases. {letters}")
    parser.add_argument("--only", action="append", default=[], help="only this contestant; may be given several times")
    parser.add_argument("--no-peers", action="store_true", help="without those that need Java or a virtual environment")
    parser.add_argument("--rounds", type=int, help="warm rounds after the cold one, at least (default 6; --quick: 1)")
    parser.add_argument(
        "--width",
        type=float,
        default=3.0,
        metavar="PERCENT",
        help="more rounds until the interval of each case's ratio is narrower (default 3 %%)",
    )
    parser.add_argument(
        "--seconds", type=float, help="most seconds for further rounds of a case (default 60; --quick: 0)"
    )
    parser.add_argument("--quick", action="store_true", help="some cases, a twentieth of the records, as a test")
    parser.add_argument("--seed", type=int, default=2013, help="of keys and sleeps: the same seed, the same records")
    parser.add_argument("--bootstrap-servers", help="a running broker to use instead of a new Apache Kafka")
    parser.add_argument("--output", type=Path, help="folder of the results (default: results/latest, or results/quick)")
    parser.add_argument("--report", action="store_true", help="only write report, plots and pages again")
    found = parser.parse_args(arguments)
    found.scale = QUICK_SCALE if found.quick else 1
    found.rounds = (1 if found.quick else ROUNDS) if found.rounds is None else found.rounds
    found.seconds = (0.0 if found.quick else 60.0) if found.seconds is None else found.seconds
    found.output = found.output or (RESULTS if found.report else RESULTS / ("quick" if found.quick else "latest"))
    found.only = found.only or (list(CONTESTANTS) if found.no_peers else [])
    if wrong := set(found.only) - CONTESTANTS.keys() - set(PEERS):
        parser.error(f"--only {', '.join(sorted(wrong))}: there are {', '.join([*CONTESTANTS, *PEERS])}")
    if found.rounds < 1 or found.seed < 0 or not set(found.cases) <= GROUPS.keys():
        parser.error(f"--rounds from 1, --seed from 0, --cases of {''.join(GROUPS)}")
    if found.report and not (found.output / "results.json").exists():
        parser.error(f"--report: there is no results.json in {found.output}; name its folder with --output")
    if not (found.width > 0 and found.seconds >= 0):
        parser.error("--width above 0, --seconds from 0")
    return found


@contextlib.asynccontextmanager
async def broker(asked: str | None, say: Callable[[str], None]) -> AsyncIterator[tuple[str, str]]:
    """The broker's address, and its description for the results."""
    if asked is not None:
        yield asked, "a running one, given with --bootstrap-servers"
        return
    async with LocalKafka(heap=HEAP, report=say) as kafka:
        yield kafka.bootstrap_servers, f"Apache Kafka {KAFKA_VERSION}, one node on this machine, heap {HEAP}"


async def run(asked: argparse.Namespace, say: Callable[[str], None]) -> list[Result]:
    """Run all cases. Results are written after each, so they are kept if this is cancelled."""
    end_on_sigterm()
    results = [] if is_full(asked) else report.read(asked.output)
    cases = chosen(asked.cases, asked.only, quick=asked.quick, scale=asked.scale)
    needed = [name for name in PEERS if any(name in case.contestants for case in cases)]
    contestants: dict[str, Contestant | str] = {**CONTESTANTS, **await asyncio.to_thread(find_peers, needed, say)}
    done: list[Result] = []
    async with broker(asked.bootstrap_servers, say) as (servers, title), Admin(servers, timeout=TIMEOUT) as admin:
        facts = gather(broker=title, seed=asked.seed, rounds=asked.rounds, scale=asked.scale)
        topics = Topics(admin)
        arena = Arena(
            servers, topics.create, contestants, asked.rounds, asked.seed, asked.scale, say,
            asked.width / 100, asked.seconds,
        )  # fmt: skip
        for together in sets(cases):
            began = facts.now()
            try:
                found = await measure(together, arena)
            except Exception as error:
                # Other cases go on; the results and the exit code report the failure.
                log.exception("case failed", extra={"case": together[0].name})
                problems = [f"not measured: {error!r}"]
                found = [Result(case.group, case.name, case.title, problems=problems) for case in together]
            finally:
                await topics.clear()
            done += found
            for result in found:
                results = report.merged(results, report.Measured(result, began))
            report.write(results, asked.output)
    return done


async def measure(together: Sequence[Case], arena: Arena) -> list[Result]:
    """Measure cases by their script, or in rounds."""
    script = SCRIPTS.get(together[0].script)
    if script:
        return [await script(case, arena) for case in together]
    results = await play(together, arena)
    for case, result in zip(together, results, strict=True):
        if case.group in COUNTED and OURS in case.contestants and arena.scale == 1:
            result.figures["instructions_per_record"] = await instructions_of(case)
    return results


async def instructions_of(case: Case) -> int | str:
    """Instructions per record of ours, or why they were not counted; the rounds count anyway."""
    try:
        counted = await instructions.count(case, [Revision("this checkout", ROOT)])
    except AioparallelError as error:
        return str(error)
    return counted if isinstance(counted, str) else round(counted[0])


def main() -> int:
    """Returns the exit code: 1 if a check failed or something could not be measured."""
    console = Console() if sys.stdout.isatty() else Console(width=160)

    def say(sentence: str) -> None:
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    if sys.argv[1:2] == ["compare"]:
        return command.main(sys.argv[2:], console)
    asked = options(sys.argv[1:])
    asked.output.mkdir(parents=True, exist_ok=True)
    # Kafka clients log conditions that pass by themselves: into a file, not between the output.
    logging.basicConfig(
        filename=asked.output / "bench.log", filemode="a" if asked.report else "w", level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )  # fmt: skip

    try:
        failed = False if asked.report else measured(asked, say)
        results = report.read(asked.output)
        plots.draw([one.case for one in results], asked.output)
        console.print(Markdown(report.write(results, asked.output)))
        say(f"Results: {asked.output}")
        if is_full(asked):
            publish(asked.output)
        if asked.report or is_full(asked):
            changed = pages.write(blocks.figures(RESULTS), pages.ROOT)
            say(f"Pages that changed: {', '.join(map(str, changed)) or 'none'}")
    except AioparallelError as error:
        say(f"ERROR {error}")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        say(f"Stopped; every process that the benchmark started has ended. What was measured: {asked.output}")
        return INTERRUPTED
    return 1 if failed else 0


def measured(asked: argparse.Namespace, say: Callable[[str], None]) -> bool:
    """Run all cases. Returns whether a check failed or something could not be measured."""
    return any(result.failed for result in asyncio.run(run(asked, say)))


def is_full(asked: argparse.Namespace) -> bool:
    """Whether pages may use its results: a run of all cases and contestants at full size."""
    every = set(asked.cases) == GROUPS.keys() and not asked.only and asked.bootstrap_servers is None
    return every and not asked.report and asked.scale == 1 and asked.rounds >= ROUNDS and asked.width <= WIDTH


def publish(folder: Path) -> None:
    """Replace the published results by those of a full run."""
    for file in (*RESULTS.glob("?-*.svg"), RESULTS / "results.json", RESULTS / "results.md"):
        file.unlink(missing_ok=True)
    for file in (*folder.glob("?-*.svg"), folder / "results.json", folder / "results.md"):
        shutil.copy(file, RESULTS)


if __name__ == "__main__":
    sys.exit(main())
