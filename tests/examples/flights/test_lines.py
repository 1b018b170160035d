"""Files of lines that a SIGKILL may interrupt."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.flights.lines import appending


@pytest.mark.parametrize(
    ("left", "kept"),
    [(b'{"a":1}\n{"b":', b'{"a":1}\n'), (b'{"a":', b""), (b"1\n2\n", b"1\n2\n"), (b"", b""), (None, b"")],
)
def test_torn_line_is_cut_off(left: bytes | None, kept: bytes, tmp_path: Path) -> None:
    """What a kill left of a line is gone before the next process appends; whole lines stay."""
    path = tmp_path / "lines"
    if left is not None:
        path.write_bytes(left)
    with appending(path) as lines:
        lines.write(b'{"c":3}')
        assert path.read_bytes() == kept + b'{"c":3}\n'
