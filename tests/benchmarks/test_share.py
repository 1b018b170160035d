"""The comparison of share consumers: its tables and goals, and what it refuses."""

from __future__ import annotations

from benchmarks.kept import GOALS
from benchmarks.share import LOADS, TITLES, Told, tables_of


def test_tables_compare_the_others_with_ours() -> None:
    """Each handler has a table with the ratio of our rate to each other one, and goals compare with the fastest."""
    rates = {
        "share": 10_000.0,
        "kmq": 5_000.0,
        "unordered": 20_000.0,
        "java-share": 2_500.0,
        "confluent_share": 1_000.0,
    }
    told = {
        (load.name, name): [Told(rate, 30.0), Told(rate * 2, 31.0), Told(rate / 2, 32.0)]
        for load in LOADS
        for name, rate in rates.items()
    }
    tables = tables_of(told, {**TITLES, "java-share": "Java", "confluent_share": "confluent"})
    rows = {row[""]: row for row in tables["Handlers: 10 ms"]}
    assert (rows["Java"]["records/s"], rows["Java"]["ours / this"]) == (2_500, 4)
    assert [(row["seen"], row["verdict"]) for row in tables[GOALS]] == [(4, "MISSED"), (1, "reached")]


def test_without_the_others_only_the_goal_of_slow_records_is_left() -> None:
    """There is nothing to compare with."""
    told = {(load.name, name): [Told(1_000.0, 30.0)] for load in LOADS for name in TITLES}
    assert [row["verdict"] for row in tables_of(told, TITLES)[GOALS]] == ["reached"]
