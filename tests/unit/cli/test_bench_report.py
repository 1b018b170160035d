from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from aioparallel.cli.bench.model import Case, Entry
from aioparallel.cli.bench.report import console, markdown, plots, store
from aioparallel.cli.bench.report.facts import gather
from aioparallel.cli.bench.report.store import Result
from aioparallel.cli.bench.report.wording import number
from aioparallel.errors import AioparallelError
from tests.unit.cli.bench_cases import FACTS, case, entry, result, run

PATTERNS = [
    {"pattern": "1 %", "encode_ms": 1.5, "decode_ms": 0.5, "characters": 640},
    {"pattern": "50 %", "encode_ms": 3.5, "decode_ms": 1.5, "characters": 6_667},
]


def latency(name: str) -> Case:
    """A measurement of latency."""
    figures = {
        f"{way}_{percentile}_ms": 0.5 + at
        for way in ("arrival_to_handler", "produce_to_handler")
        for at, percentile in enumerate(("p50", "p99", "p999", "max"))
    }
    return Case("f", name, f"Title of {name}", 1_000, figures=figures)


def one_of_each() -> list[Case]:
    """A case of every group."""
    contest = (entry("ours", 3_000), entry("java", 1_000), entry("pyrallel", 20, stopped=True))
    recovery = {"ours": {"repeated": 0, "seconds": 0.5}, "by-hand": {"repeated": 99_900, "seconds": 2.5}}
    return [
        case("a-key", *contest),
        case("b-key-2", entry("ours", 900), entry("java", 800), bound=1.0),
        case("b-key-20", entry("ours", 9_000), entry("java", 5_000), bound=0.1),
        case("c-sleep", *contest, entry("ceiling", 3_300)),
        case("d-flights", *contest),
        case("e-keys-1000", entry("ours", 3_000)),
        case("e-keys-10000", entry("ours", 2_000)),
        case("e-concurrency-10", entry("ours", 2_000)),
        latency("f-20000"),
        latency("f-half"),
        Case("g", "g-time", "Times", figures={"encode_ms": 3.5, "decode_ms": 1.5, "patterns": PATTERNS}),
        Case("h", "h-recovery", "Recovery", figures={"contestants": recovery}),
        Case("i", "i-members-2", "Two members", figures={"rate_sleep": 84_000.0}),
    ]


def test_reads_back_what_it_wrote(tmp_path: Path) -> None:
    """Every run, figure, problem and fact survives; the goals stand beside them for other programs."""
    bad = case("a-unordered", Entry("ours", "ours", [run(1, 10, problem="offset 3 is missing")]))
    written = store.merge([], map(result, [*one_of_each(), bad]))
    store.write(written, tmp_path)
    assert store.read(tmp_path) == written
    document = json.loads((tmp_path / "results.json").read_text())
    (goal,) = [goal for goal in document["goals"] if goal["text"] == "KEY, no-op: rate ours / java"]
    assert (goal["verdict"], goal["value"]) == ("must", pytest.approx(3.0))
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_numbers_of_numpy_are_written(tmp_path: Path) -> None:
    """A measurement may leave them among its figures."""
    store.write([result(Case("f", "f-half", "Half", figures={"rate": np.float32(1.5), "n": np.int64(3)}))], tmp_path)
    assert store.read(tmp_path)[0].case.figures == {"rate": 1.5, "n": 3}


def test_nothing_to_read(tmp_path: Path) -> None:
    """A folder without results has none; a file of another kind is refused with its name."""
    assert store.read(tmp_path) == []
    for text in ("{", '{"format": 99, "results": []}', '{"format": 1, "results": [{"case": {}}]}'):
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(AioparallelError, match=r"results\.json is not what this version"):
            store.read(tmp_path)


def test_merging_keeps_the_other_cases() -> None:
    """A case that ran again replaces its former self as a whole, others keep their date; the order is that of groups,
    and of the numbers in names."""
    old = [result(case(name, entry("ours", 1), entry("java", 1))) for name in ("b-key-20", "b-key-100", "c-sleep")]
    later = replace(FACTS, date="2026-11-22T12:00:00+00:00")
    new = [Result(case(name, entry("ours", 2)), later) for name in ("b-key-100", "a-key")]
    merged = store.merge(old, new)
    assert [found.case.name for found in merged] == ["a-key", "b-key-20", "b-key-100", "c-sleep"]
    assert [found.facts.date[8:10] for found in merged] == ["22", "21", "22", "21"]
    assert merged[2].case.entry("java") is None


def test_contest_tables_have_figures_and_ratios() -> None:
    """Median, lowest and highest, the cold run by itself, CPU, memory, and the ratio against ours."""
    text = markdown.markdown([result(case("a-key", entry("ours", 3_000), entry("java", 1_000)))])
    assert "| a-key | ours | 3,000 (2,700-3,600) | 1,500 | 10.0 | 50 | 1 |" in text
    assert "`ours`, title of ours; `java`, title of java." in text
    assert "|  | java | 1,000 (900-1,200) | 500 | 10.0 | 50 | 3.00 |" in text


def test_key_count_table() -> None:
    """Seconds of both against the bound, in the order of the counts."""
    rows = [
        case("b-key-100", entry("ours", 1_000), bound=0.8),
        case("b-key-20", entry("ours", 1_000), entry("java", 500), bound=0.8),
    ]
    text = markdown.markdown(store.merge([], map(result, rows)))
    first = "| b-key-20 | 0.800 | 1.00 (0.833-1.11) | 2.00 (1.67-2.22) | 1.25 | 2.00 |"
    second = "| b-key-100 | 0.800 | 1.00 (0.833-1.11) | - | 1.25 | - |"
    assert 0 < text.index(first) < text.index(second)


def test_what_went_wrong_is_said_in_words() -> None:
    """Missing and stopped contestants, problems of runs and of cases; a bar in a reason breaks no table."""
    contest = case(
        "a-key",
        Entry("ours", "ours", [run(0, 10), run(1, 10, problem="partition 0, offset 3 ran twice")]),
        Entry("java", "Java", missing="Java was not found | install one"),
        Entry("pyrallel", "pyrallel", [run(0, 10, stopped=True)]),
    )
    steady = latency("f-20000")
    steady.problems.append("3 records are missing")
    text = markdown.markdown([result(contest), result(steady)])
    assert "java did not run in a-key: Java was not found \\| install one" in text
    assert "a-key: ours, round 1, counts for nothing: partition 0, offset 3 ran twice" in text
    assert "a-key: pyrallel was stopped at the limit of its time after 1,000 in round 0 of 1,000 records" in text
    assert "f-20000: 3 records are missing" in text
    assert "| a-key | ours | no good warm run | 10.0 | - | - | - |" in text


def test_figures_of_measured_cases() -> None:
    """Cases with the same figures stand side by side; rows within a figure are a table of their own."""
    text = markdown.markdown([result(found) for found in one_of_each()])
    assert "| figure | f-20000 | f-half |" in text
    assert "| arrival_to_handler_p99_ms | 1.50 | 1.50 |" in text
    assert "| pattern | encode_ms | decode_ms | characters |" in text
    assert "| by-hand | 99,900 | 2.50 |" in text


def test_goals_and_machine() -> None:
    """The goals with what was seen and how it came out, and once what it was measured with."""
    text = markdown.markdown([result(found) for found in one_of_each()], ["a-throughput.png"])
    assert "| a | KEY, no-op: rate ours / java | 3.00 | >= 2.5 | 4 | reached |" in text
    assert "not measured (getmany did not run in a-key)" in text
    assert "| f | 20,000 records/s: arrival to handler, p99 | 1.50 ms | <= 5 ms | 2 ms | reached, stretch too |" in text
    assert text.count("Some CPU, 2 cores, 24 GiB") == 1
    assert "![group a](a-throughput.png)" in text
    assert "Not at full size" not in text


def test_small_runs_are_marked() -> None:
    """Divided record counts are said at the top, and machines that differ are told apart."""
    small = Result(case("c-sleep", entry("ours", 1)), replace(FACTS, scale=20))
    text = markdown.markdown([result(case("a-key", entry("ours", 1))), small])
    assert "**Not at full size: (c).**" in text
    assert text.count("Some CPU") == 2
    assert "record counts divided by 20" in text
    assert "**Not at full size: all cases.**" in markdown.markdown([small])
    partly = [small, result(case("c-other", entry("ours", 1)))]
    assert "**Not at full size: c-sleep.**" in markdown.markdown(partly)


def test_plots_are_drawn_where_their_cases_are(tmp_path: Path) -> None:
    """One for each group that has any, as PNG; those of cases that are gone go too."""
    drawn = plots.draw(one_of_each(), tmp_path)
    names = ["a-throughput", "b-keys", "c-throughput", "d-throughput", "e-cost", "f-latency", "g-maps"]
    assert [path.stem for path in drawn] == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    nothing = case("c-sleep", Entry("ours", "ours", [run(1, 10, problem="wrong")]))
    assert plots.draw([nothing], tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_the_terminal_shows_the_groups_that_ran() -> None:
    """Tables, notes and only those goals that belong to them, in words."""
    output = StringIO()
    shown = [case("a-key", entry("ours", 3_000), entry("java", 1_000), Entry("getmany", "getmany", missing="[gone]"))]
    console.show(shown, Console(file=output, width=160, color_system=None), full_size=False)
    text = output.getvalue()
    assert "3,000 (2,700-3,600)" in text
    assert "getmany did not run in a-key: [gone]" in text
    assert "1 reached; 2 not measured" in text
    assert "latency" not in text
    assert "Not at full size" in text


def test_facts_of_this_machine() -> None:
    """All is known but perhaps Java."""
    facts = gather(broker="none", seed=1, rounds=2, scale=3)
    assert facts.cores >= 1
    assert facts.cpu
    assert facts.aiokafka.startswith("0.")
    assert facts.now().undated == facts.undated


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (204_345.4, "204,345"),
        (18.24, "18.2"),
        (1.234, "1.23"),
        (0.0451, "0.0451"),
        (0.5, "0.500"),
        (7, "7"),
        (0.0, "0"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    """Three digits that count; whole numbers as they are."""
    assert number(value) == text
