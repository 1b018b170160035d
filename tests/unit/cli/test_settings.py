from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aioparallel.cli.demo.settings import Settings
from aioparallel.errors import ConfigurationError


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"records": 0}, "--records"),
        ({"records": 336_777}, "--records"),
        ({"records": 10, "plain_records": 11}, "--plain-records"),
        ({"concurrency": 0}, "--concurrency"),
        ({"partitions": 0}, "--partitions"),
        ({"records": 399, "plain_records": 1, "kills": 4}, "--kills"),
    ],
)
def test_wrong_option_is_named(options: dict[str, Any], named: str) -> None:
    """An option outside its range is refused, named as it is typed."""
    with pytest.raises(ConfigurationError, match=f"^{named}="):
        Settings(output=Path("out"), **options)


def test_files_lie_in_the_output_folder() -> None:
    """Everything the demo writes lies below the folder asked for."""
    settings = Settings(output=Path("out"), kills=3)
    assert {path.parts[0] for path in (settings.evidence, settings.enriched, settings.picture)} == {"out"}
