"""What a page says of its tests: they are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)


def test_the_guarantees_of_spark_have_their_tests() -> None:
    """Each row of the table names one at least, and each of them is found."""
    text = (ROOT / "docs/spark.md").read_text().partition("| guarantee | for | test |")[2].partition("\n\n")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) > 5
    targets = set(_TARGET.findall((ROOT / "Makefile").read_text()))
    for row in rows:
        named = re.findall(r"`([^`]+)`", row.rpartition(" | ")[2])
        assert named, row
        path = ""
        for name in named:
            if name.startswith("make "):
                assert name.removeprefix("make ") in targets, name
                continue
            file, _, function = name.partition("::")
            path = file or path
            content = (ROOT / path).read_text()
            assert not function or f"def {function}(" in content, name
