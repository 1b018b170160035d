"""What ``aioparallel consume`` prints of a record."""

from __future__ import annotations

import json

import pytest

from aioparallel.cli.consume.showing import as_object, as_text
from aioparallel.records.record import Record


@pytest.mark.parametrize("timestamp", [1_700_000_000_000_000, 1_700_000_000_000_000_000, 2**63 - 1])
def test_a_timestamp_beyond_all_dates(timestamp: int) -> None:
    """Microseconds, say, which a producer sent as milliseconds: the record is shown all the same."""
    record = Record("t", 0, 7, b"key", b"value", (), timestamp)
    text = as_text(record).plain
    assert text.startswith(f"t-0@7  @{timestamp / 1000:.3f}  ")
    assert "key  value" in text
    assert json.loads(json.dumps(as_object(record)))["timestamp"] == f"@{timestamp / 1000:.3f}"
