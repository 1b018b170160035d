"""The page of a room: its scores, and each mutant that survived with the reason that somebody wrote below it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .mutants import Key, Mutant
from .scores import Score, Verdict

__all__ = ["OPEN", "Entry", "Page", "Run"]

OPEN = "open"
"""The reason of a survivor that nobody has looked at."""

_HEADING = re.compile(r"^### `(?P<file>[^:`]+):\d+` `(?P<function>[^`]+)`(?: \((?P<turn>\d+)\))?$", re.MULTILINE)
_COLUMNS = ("commit", "date", "seed", "mutants", "killed", "timed out", "survived", "no test", "not judged", "score")


@dataclass(frozen=True)
class Run:
    """One line of the table. A later run of the same commit and seed takes its place."""

    commit: str
    date: str
    seed: int
    score: Score

    def cells(self) -> tuple[str, ...]:
        """As the table has them."""
        score = self.score
        done = score.judged + score.not_judged
        mutants = f"{done} of {score.population}"
        if done < score.wanted:
            mutants = f"{done} of {score.wanted} drawn (stopped), of {score.population}"
        counts = (score.killed, score.timed_out, score.survived, score.no_test, score.not_judged)
        return (self.commit, self.date, str(self.seed), mutants, *map(str, counts), str(score))


@dataclass(frozen=True)
class Entry:
    """A mutant that survived once. ``line`` is 0 where it is not known."""

    key: Key
    line: int
    reason: str

    def __str__(self) -> str:
        turn = f" ({self.key.turn})" if self.key.turn > 1 else ""
        changes = [f"-{line}" for line in self.key.removed] + [f"+{line}" for line in self.key.added]
        heading = f"### `{self.key.file}:{self.line}` `{self.key.function}`{turn}"
        return "\n".join([heading, "", "```diff", *changes, "```", "", self.reason, ""])


class Page:
    """Reads a page, takes in what a run has found, and writes it anew."""

    def __init__(self, room: str, text: str = "") -> None:
        self._room = room
        self._rows = [
            tuple(cell.strip() for cell in line[1:-1].split("|")) for line in text.splitlines() if line[:2] == "| "
        ]
        self._rows = self._rows[1:]  # without the names of the columns
        self.entries = {entry.key: entry for entry in _entries(text)}

    @classmethod
    def read(cls, room: str, path: Path) -> Page:
        """An empty one where there is none."""
        return cls(room, path.read_text() if path.exists() else "")

    def take(
        self, run: Run | None, mutants: Iterable[Mutant], verdicts: Mapping[str, Verdict], killers: Mapping[str, str]
    ) -> None:
        """``run``: its line in the table; None: it was no draw, and has none. ``mutants``: all there are; ``verdicts``
        and ``killers`` by name, of those that are known. Entries of mutants that are no more go; reasons of the others
        stay, but for those of mutants that are killed now."""
        if run is not None:
            row = run.cells()
            self._rows = [one for one in self._rows if (one[0], one[2]) != (row[0], row[2])] + [row]
        old, self.entries = self.entries, {}
        for mutant in mutants:
            verdict, entry = verdicts.get(mutant.name), old.get(mutant.key)
            if verdict in {Verdict.SURVIVED, Verdict.NO_TEST}:
                reason = entry.reason if entry and not _is_killed(entry) else OPEN
                if reason == OPEN and verdict is Verdict.NO_TEST:
                    reason = f"{OPEN}: no test comes here"
            elif entry and verdict is Verdict.KILLED:
                reason = f"killed by `{killers.get(mutant.name, 'a test')}`"
            elif entry and verdict is Verdict.TIMED_OUT:
                reason = "killed: a test times out"
            elif entry:
                reason = entry.reason
            else:
                continue
            self.entries[mutant.key] = Entry(mutant.key, mutant.line, reason)

    def __str__(self) -> str:
        entries = sorted(self.entries.values(), key=lambda entry: (entry.key.file, entry.line))
        lines = [
            f"# Mutants of {self._room}",
            "",
            f"Written by `make mutations ROOM={self._room}`. Reviewers write the text below a diff, and it is kept.",
            "",
            _table_row(_COLUMNS),
            "|" + "---|" * len(_COLUMNS),
            *map(_table_row, self._rows),
            "",
            *_section("Survivors", [entry for entry in entries if not _is_killed(entry)]),
            *_section("Killed since they were listed", [entry for entry in entries if _is_killed(entry)]),
        ]
        return "\n".join(lines).rstrip() + "\n"


def _is_killed(entry: Entry) -> bool:
    return entry.reason.startswith("killed")


def _table_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _section(title: str, entries: list[Entry]) -> list[str]:
    return [f"## {title}: {len(entries)}", "", *map(str, entries)] if entries else []


def _entries(text: str) -> Iterable[Entry]:
    found = list(_HEADING.finditer(text))
    ends = [*(match.start() for match in found[1:]), len(text)]
    for match, end in zip(found, ends, strict=False):
        _, changes, reason = text[match.end() : end].split("```", 2)
        lines = changes.splitlines()[1:]
        key = Key(
            match["file"],
            match["function"],
            tuple(line[1:] for line in lines if line[0] == "-"),
            tuple(line[1:] for line in lines if line[0] == "+"),
            int(match["turn"] or 1),
        )
        yield Entry(key, 0, reason.partition("\n## ")[0].strip())
