"""Changes the code of one room in one place at a time, and says how many of the changes a test notices."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from .mutants import Mutant, first_tried, mutants_of, sample
from .pages import Page, Run
from .rooms import ROOT, rooms
from .scores import Score, Verdict

if TYPE_CHECKING:
    from .running import Mutations


def main() -> int:
    """0 once the page is written, however much was done."""
    known = rooms()
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("room", choices=known)
    parser.add_argument("--sample", type=int, metavar="N", help="draw so many mutants (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: 1)")
    parser.add_argument(
        "--listed",
        action="store_true",
        help="in place of a draw those that the room's page lists: do tests kill them now?",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    parser.add_argument("--minutes", type=float, help="stop after so many; another run goes on from there")
    asked = parser.parse_args()
    room, commit = known[asked.room], _commit()
    deadline = time.monotonic() + asked.minutes * 60 if asked.minutes else float("inf")
    room.prepare()
    fingerprint = room.fingerprint_of_tests()
    print(f"{room.name}: makes mutants, and runs the tests without any", file=sys.stderr, flush=True)
    os.chdir(room.folder)
    from .running import Mutations  # noqa: PLC0415 - mutmut reads its settings as it is imported

    mutations = Mutations(workers=asked.jobs)
    mutations.make(fingerprint)
    mutants = mutants_of(room.folder, mutations.files)
    page = Page.read(room.name, room.page)
    if asked.listed:
        drawn = [mutant for mutant in mutants if mutant.key in page.entries]
    else:
        drawn = sample(mutants, asked.sample, asked.seed)
    _run(mutations, [mutant.name for mutant in drawn], deadline)
    done = first_tried(drawn, _verdicts(mutations, drawn))
    score = Score.of(_verdicts(mutations, done).values(), wanted=len(drawn), population=len(mutants))
    run = None if asked.listed else Run(commit, f"{datetime.now(UTC):%Y-%m-%d}", asked.seed, score)
    page.take(run, mutants, _verdicts(mutations, mutants), mutations.killers())
    room.page.write_text(str(page))
    print(f"{room.name}: {score}. Survivors: {room.page.relative_to(ROOT)}")
    return 0


def _run(mutations: Mutations, names: list[str], deadline: float) -> None:
    """Until all have a verdict, the deadline, or Ctrl-C."""
    left = [name for name in names if mutations.verdict(name) is None]
    done, began, survived = len(names) - len(left), time.monotonic(), 0
    results: Iterator[str] = mutations.run(left)
    try:
        for name in results:
            done += 1
            survived += mutations.verdict(name) in {Verdict.SURVIVED, Verdict.NO_TEST}
            _show(f"{done} of {len(names)} mutants, {survived} survived, {time.monotonic() - began:.0f} s", done)
            if time.monotonic() > deadline:
                break
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
    finally:
        results.close()  # type: ignore[attr-defined]


def _show(text: str, done: int) -> None:
    if sys.stderr.isatty() or done % 10 == 0:
        print(f"\r{text}   ", end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)


def _verdicts(mutations: Mutations, mutants: list[Mutant]) -> dict[str, Verdict]:
    found = {mutant.name: mutations.verdict(mutant.name) for mutant in mutants}
    return {name: verdict for name, verdict in found.items() if verdict is not None}


def _commit() -> str:
    """With a plus where code or tests differ from it."""
    head = _git("rev-parse", "--short", "HEAD")
    return f"{head}+" if _git("status", "--porcelain", "--", "aioparallel", "tests", ":!tests/mutations") else head


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=Path(ROOT), capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
