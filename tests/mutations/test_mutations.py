"""Samples, scores and pages of mutation testing. mutmut itself is not needed here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .mutants import Key, Mutant, first_tried, is_noise, mutants_of, sample
from .pages import OPEN, Page, Run
from .rooms import ROOT, rooms
from .scores import Score, Verdict, wilson

SOURCE = '''\
"""A module."""


class Box:
    def put(self, one: int) -> None:
        # Never more than five.
        if self.size < 5:
            self.size += one
            self.size += one


def twice(number: int) -> int:
    return number * 2
'''

MUTATED = """\
class Box:
    @_mutmut_mutated(mutants_xǁBoxǁput__mutmut)
    def put(self, one: int) -> None:
        # Never more than five.
        if self.size < 5:
            self.size += one
            self.size += one
    def xǁBoxǁput__mutmut_orig(self, one: int) -> None:
        # Never more than five.
        if self.size < 5:
            self.size += one
            self.size += one
    def xǁBoxǁput__mutmut_1(self, one: int) -> None:
        # Never more than five.
        if self.size <= 5:
            self.size += one
            self.size += one
    def xǁBoxǁput__mutmut_2(self, one: int) -> None:
        # Never more than five.
        if self.size < 5:
            self.size -= one
            self.size += one
    def xǁBoxǁput__mutmut_3(self, one: int) -> None:
        # Never more than five.
        if self.size < 5:
            self.size += one
            self.size -= one


def x_twice__mutmut_orig(number: int) -> int:
    return number * 2


def x_twice__mutmut_1(number: int) -> int:
    return number * 3
"""

SPANS = {
    "xǁBoxǁput__mutmut_orig": [8, 12],
    "xǁBoxǁput__mutmut_1": [13, 17],
    "xǁBoxǁput__mutmut_2": [18, 22],
    "xǁBoxǁput__mutmut_3": [23, 27],
    "x_twice__mutmut_orig": [28, 31],
    "x_twice__mutmut_1": [32, 35],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As mutmut leaves one."""
    for place, text in (("package", SOURCE), ("mutants/package", MUTATED)):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "box.py").write_text(text)
    (tmp_path / "mutants/package/box.py.spans").write_text(json.dumps({"version": 1, "spans": SPANS}))
    return tmp_path


def many(count: int) -> list[Mutant]:
    """In one function, line by line."""
    return [Mutant(f"m.x_f__mutmut_{n}", Key("m.py", "f", (f"    a{n}",), (f"    b{n}",), 1), n) for n in range(count)]


def run_of(mutants: list[Mutant], verdicts: dict[str, Verdict], *, commit: str = "abc1234") -> Run:
    """With their score."""
    score = Score.of(verdicts.values(), wanted=len(mutants), population=len(mutants))
    return Run(commit, "2026-01-01", 1, score)


def test_mutants_are_told_by_place_and_change(folder: Path) -> None:
    """With the lines of the file as it is, and those that read the same counted."""
    found = {mutant.name: (mutant.line, mutant.key) for mutant in mutants_of(folder, ["package/box.py"])}
    plus, minus = "            self.size += one", "            self.size -= one"
    less, less_or_equal = "        if self.size < 5:", "        if self.size <= 5:"
    assert found == {
        "package.box.xǁBoxǁput__mutmut_1": (7, Key("package/box.py", "Box.put", (less,), (less_or_equal,), 1)),
        "package.box.xǁBoxǁput__mutmut_2": (8, Key("package/box.py", "Box.put", (plus,), (minus,), 1)),
        "package.box.xǁBoxǁput__mutmut_3": (9, Key("package/box.py", "Box.put", (plus,), (minus,), 2)),
        "package.box.x_twice__mutmut_1": (
            13,
            Key("package/box.py", "twice", ("    return number * 2",), ("    return number * 3",), 1),
        ),
    }


@pytest.mark.parametrize(
    ("function", "added", "noise"),
    [("Box.__repr__", "    x", True), ("f", "    y = cast(None, x)", True), ("f", "    y = g(None, x)", False)],
)
def test_texts_and_casts_are_noise(function: str, added: str, noise: bool) -> None:
    """And nothing else that reads like them."""
    assert is_noise(Key("m.py", function, ("    before",), (added,), 1)) is noise


def test_a_seed_draws_the_same_mutants_each_time() -> None:
    """Those that stay are still drawn when others are gone; another seed draws others."""
    mutants = many(200)
    drawn = sample(mutants, 50, seed=1)
    assert drawn == sample(reversed(mutants), 50, seed=1)
    assert len(drawn) == 50
    assert set(drawn) != set(sample(mutants, 50, seed=2))
    gone = drawn[:10]
    assert set(drawn[10:]) < set(sample([one for one in mutants if one not in gone], 50, seed=1))
    assert set(sample(mutants, None, seed=1)) == set(mutants)


def test_a_run_that_was_stopped_counts_a_draw_alone() -> None:
    """What is known behind the first that was not tried was chosen by its verdict."""
    mutants = many(5)
    assert first_tried(mutants, {mutants[n].name for n in (0, 1, 3, 4)}) == mutants[:2]
    assert first_tried(mutants, {mutant.name for mutant in mutants}) == mutants
    assert first_tried(mutants, {}) == []


@pytest.mark.parametrize(
    ("hits", "tries", "low", "high"),
    [(0, 0, 0, 1), (0, 10, 0, 0.2775), (10, 10, 0.7225, 1), (81, 263, 0.2553, 0.3662)],
)
def test_wilsons_interval(hits: int, tries: int, low: float, high: float) -> None:
    """81 of 263 is Newcombe's example (1998, Table I)."""
    assert wilson(hits, tries) == pytest.approx((low, high), abs=5e-5)


def test_a_mutant_without_a_test_has_survived() -> None:
    """One that timed out is killed; one that was not judged counts neither way."""
    verdicts = [Verdict.KILLED, Verdict.TIMED_OUT, Verdict.SURVIVED, Verdict.NO_TEST, Verdict.NOT_JUDGED]
    score = Score.of(verdicts, wanted=5, population=4)
    assert (score.judged, str(score)) == (4, "50.0%")
    assert str(Score.of(verdicts, wanted=5, population=400)) == "50.0% (15.0% to 85.0%)"
    assert str(Score.of([], wanted=5, population=400)) == "none yet"


def test_a_page_keeps_what_people_wrote() -> None:
    """Wherever the mutant's function has moved."""
    mutants = many(2)
    verdicts = dict.fromkeys((one.name for one in mutants), Verdict.SURVIVED)
    page = Page("room")
    page.take(run_of(mutants, verdicts), mutants, verdicts, {})
    first = mutants[0].key
    text = str(page).replace(OPEN, "Does not matter: twice\n\n- the same, see `f`.", 1)
    moved = [Mutant(one.name, one.key, one.line + 7) for one in mutants]
    again = Page("room", text)
    again.take(run_of(mutants, verdicts), moved, verdicts, {})
    assert str(again) == text.replace("`m.py:0`", "`m.py:7`").replace("`m.py:1`", "`m.py:8`")
    assert again.entries[first].reason == "Does not matter: twice\n\n- the same, see `f`."
    assert again.entries[mutants[1].key].reason == OPEN


def test_a_page_tells_who_has_killed_a_survivor() -> None:
    """One that survives again is open; one that is no more is not told of; those never listed neither."""
    mutants = many(4)
    verdicts = dict.fromkeys((one.name for one in mutants), Verdict.SURVIVED) | {mutants[3].name: Verdict.KILLED}
    page = Page("room")
    page.take(run_of(mutants, verdicts), mutants, verdicts, {})
    killed = verdicts | {mutants[0].name: Verdict.KILLED, mutants[1].name: Verdict.TIMED_OUT}
    page.take(run_of(mutants, killed, commit="def"), mutants[:2], killed, {mutants[0].name: "tests/t.py::test_it"})
    page = Page("room", str(page))
    assert {key: entry.reason for key, entry in page.entries.items()} == {
        mutants[0].key: "killed by `tests/t.py::test_it`",
        mutants[1].key: "killed: a test times out",
    }
    page.take(run_of(mutants, verdicts, commit="ghi"), mutants[:1], verdicts, {})
    assert [entry.reason for entry in page.entries.values()] == [OPEN]


def test_those_that_are_listed_are_no_draw() -> None:
    """Tried again by themselves they change their reasons, and no score."""
    mutants = many(2)
    verdicts = dict.fromkeys((one.name for one in mutants), Verdict.SURVIVED)
    page = Page("room")
    page.take(run_of(mutants, verdicts), mutants, verdicts, {})
    before = str(page).count("\n| ")
    page.take(None, mutants, verdicts | {mutants[0].name: Verdict.KILLED}, {mutants[0].name: "tests/t.py::test_it"})
    assert str(page).count("\n| ") == before
    assert [entry.reason for entry in page.entries.values()] == ["killed by `tests/t.py::test_it`", OPEN]


def test_a_page_keeps_survivors_of_other_samples() -> None:
    """They were not tried this time."""
    mutants = many(1)
    page = Page("room")
    page.take(run_of(mutants, {}), mutants, {mutants[0].name: Verdict.NO_TEST}, {})
    page.take(run_of(mutants, {}), mutants, {}, {})
    assert page.entries[mutants[0].key].reason == "open: no test comes here"


def test_a_page_has_one_line_for_each_commit_and_seed() -> None:
    """The last one; and says what was left undone."""
    mutants = many(3)
    page = Page("room")
    some = {mutants[0].name: Verdict.KILLED}
    page.take(run_of(mutants, some), mutants, some, {})
    assert "1 of 3 drawn (stopped), of 3" in str(page)
    everything = dict.fromkeys((one.name for one in mutants), Verdict.KILLED)
    page = Page("room", str(page))
    page.take(run_of(mutants, everything), mutants, everything, {})
    page.take(run_of(mutants, everything, commit="def"), mutants, everything, {})
    rows = [line for line in str(page).splitlines() if "2026-01-01" in line]
    assert rows == [
        "| abc1234 | 2026-01-01 | 1 | 3 of 3 | 3 | 0 | 0 | 0 | 0 | 100.0% |",
        "| def | 2026-01-01 | 1 | 3 of 3 | 3 | 0 | 0 | 0 | 0 | 100.0% |",
    ]


@pytest.mark.parametrize("name", rooms())
def test_rooms_are_there(name: str) -> None:
    """Code and tests of each: a pattern that finds nothing makes a score of nothing."""
    room = rooms()[name]
    assert all(list(ROOT.glob(pattern)) for pattern in (*room.code, *room.leave))
    places = [place.partition("::")[0] for place in room.tests if place.startswith("tests/")]
    assert places
    assert all((ROOT / place).exists() for place in places)
