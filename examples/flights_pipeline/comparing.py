"""The totals computed from the CSV files with pandas, and the differences."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pandas as pd
from rich.table import Table

from examples.flights.flights import data_directory

__all__ = ["Difference", "condition", "differences", "expected_totals", "found_totals", "table_of"]

COUNTED = ["flights", "dep_delay", "arr_delay"]
COLUMNS = [*COUNTED, "cancelled"]


class Difference(NamedTuple):
    """A total that differs."""

    group: str
    """``carrier UA``, ``weather windy`` or ``all``."""
    column: str
    expected: int
    found: int


def expected_totals(count: int) -> pd.DataFrame:
    """Totals of the first ``count`` flights: a row for each carrier, each weather, and all; columns :data:`COLUMNS`."""
    directory = data_directory()
    columns = ["carrier", "origin", "time_hour", "dep_time", "dep_delay", "arr_delay"]
    flights = pd.read_csv(directory / "flights.csv.zip", usecols=columns, nrows=count)
    weather = pd.read_csv(directory / "weather.csv").drop_duplicates(["origin", "time_hour"], keep="last")
    flown = flights[flights["dep_time"].notna()].merge(weather, on=["origin", "time_hour"], how="left", indicator=True)
    flown["weather"] = condition(flown)
    cancelled = flights.loc[flights["dep_time"].isna(), "carrier"].value_counts()
    return _totals(flown.assign(flights=1), cancelled)


def condition(flown: pd.DataFrame) -> pd.Series:
    """The weather in a word, as :func:`examples.flights_pipeline.totals.condition` computes it in Spark."""
    weather = pd.Series("fair", index=flown.index)
    weather = weather.mask(flown["wind_speed"] >= 20, "windy")
    weather = weather.mask(flown["precip"] > 0, "rain or snow")
    weather = weather.mask(flown["visib"] < 3, "poor visibility")
    return weather.mask(flown["_merge"] == "left_only", "unknown")


def found_totals(delays: Path, missing: Path) -> pd.DataFrame:
    """The same totals from Spark's results."""
    return _totals(pd.read_parquet(delays), pd.read_parquet(missing).set_index("carrier")["count"])


def _totals(rows: pd.DataFrame, cancelled: pd.Series) -> pd.DataFrame:
    by_carrier = rows.groupby("carrier")[COUNTED].sum().join(cancelled.rename("cancelled"), how="outer")
    by_weather = rows.groupby("weather")[COUNTED].sum()
    everything = by_carrier.sum().to_frame("").T
    totals = pd.concat({"carrier": by_carrier, "weather": by_weather, "all": everything})
    return totals.reindex(columns=COLUMNS).fillna(0).astype("int64")


def differences(expected: pd.DataFrame, found: pd.DataFrame) -> list[Difference]:
    """All differences; a group that one side lacks counts as zeros there."""
    groups = expected.index.union(found.index)
    first, second = (one.reindex(groups, fill_value=0) for one in (expected, found))
    return [
        Difference(" ".join(group).strip(), column, int(first.loc[group, column]), int(second.loc[group, column]))
        for group in groups
        for column in COLUMNS
        if first.loc[group, column] != second.loc[group, column]
    ]


def table_of(wrong: list[Difference]) -> Table:
    """The differences as a table."""
    table = Table("group", "figure", title="Not the same as from the CSV files")
    for name in ("expected", "found", "difference"):
        table.add_column(name, justify="right")
    for one in wrong:
        table.add_row(one.group, one.column, *(f"{n:,}" for n in (one.expected, one.found, one.found - one.expected)))
    return table
