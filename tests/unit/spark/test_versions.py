"""Versions of PySpark that are refused, and those that the extra admits."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.versions import check_pyspark

IMPORT = """
import pyspark
pyspark.__version__ = {version!r}
import {module}
"""


@pytest.mark.parametrize("version", ["4.2.0", "4.2.1", "4.3.0", "4.3.0.dev1", "5.0.0", "4.10.0"])
def test_those_that_serve(version: str) -> None:
    """The oldest, what comes between, and newer ones."""
    check_pyspark(version)


@pytest.mark.parametrize("version", ["4.1.4", "4.0.5", "3.5.9", "unknown"])
def test_those_that_are_too_old(version: str) -> None:
    """It says which are not."""
    with pytest.raises(ConfigurationError, match=r"needs 4\.2 or newer"):
        check_pyspark(version)


@pytest.mark.parametrize("module", ["aioparallel.spark", "aioparallel.spark.topics"])
def test_the_import_says_it(module: str) -> None:
    """Before anything of PySpark is missed."""
    program = IMPORT.format(version="4.1.4", module=module)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    assert "pyspark='4.1.4': is too old for aioparallel.spark, which needs 4.2 or newer" in ran.stderr


def test_what_the_extra_admits() -> None:
    """All of 4.2 and 4.3; the newest is what all tests run on."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    spark, tested = (
        next(one for one in map(Requirement, extras[name]) if one.name == "pyspark") for name in ("spark", "dev")
    )
    versions = ["4.1.4", "4.2.0", "4.2.1", "4.3.0", "4.3.2", "4.4.0"]
    assert [one for one in versions if one in spark.specifier] == ["4.2.0", "4.2.1", "4.3.0", "4.3.2"]
    assert [one for one in versions if one in tested.specifier] == ["4.3.0"]
