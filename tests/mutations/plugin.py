"""What pytest does while it looks for a test that kills a mutant. Loaded by its name, in mutmut's processes only."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from .rooms import FAILED, KILLERS

_TIMED_OUT = 36
"""mutmut's own number for it."""

_SLOWER = 10
"""A test that takes this many times as long as usual hangs..."""

_AT_LEAST = 15.0
"""... but not before so many seconds: several processes share the machine."""

_MEMORY = 6 << 30
"""Bytes of addresses for one mutant: loops that never end eat all memory."""


_folder = Path()
"""That of the mutants, wherever a test goes."""


def _mutant() -> str:
    """Its name, or "" while the code is as it should be."""
    name = os.environ.get("MUTANT_UNDER_TEST", "")
    return name if "__mutmut_" in name else ""


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """The examples of the tests, but what is found is not made smaller: that takes minutes, and nobody reads it."""
    global _folder
    _folder = Path.cwd()
    settings.register_profile(
        "mutations", settings.get_profile("fixed"), phases=[Phase.explicit, Phase.generate], print_blob=False
    )
    settings.load_profile("mutations")
    if _mutant():
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first, each with a deadline."""
    found = _folder / "mutmut-stats.json"
    if not _mutant() or not found.exists():
        return
    seconds: dict[str, float] = json.loads(found.read_text())["duration_by_test"]
    items.sort(key=lambda item: seconds.get(item.nodeid, 0.0))
    for item in items:
        limit = _AT_LEAST + _SLOWER * seconds.get(item.nodeid, 0.0)
        item.add_marker(pytest.mark.timeout(limit), append=False)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes who has killed it. And what fails without a mutant: mutmut keeps that to itself."""
    if not report.failed:
        return
    mutant = _mutant()
    if not mutant:
        (_folder / FAILED).write_text(f"{report.nodeid}\n{report.longreprtext}\n")
        return
    if "Failed: Timeout (>" in report.longreprtext:
        os._exit(_TIMED_OUT)
    with (_folder / KILLERS).open("a") as killers:
        killers.write(f"{mutant}\t{report.nodeid}\n")
