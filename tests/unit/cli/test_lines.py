"""What ``aioparallel produce`` makes of its input."""

from __future__ import annotations

import sys

import pytest

from aioparallel.cli.app import run
from aioparallel.cli.produce.command import Producing
from aioparallel.cli.produce.lines import LineParser
from aioparallel.records.errors import ConfigurationError


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (rb'{"id": "\ud83d"}', "half a surrogate pair in line 1"),
        (b"[" * 200_000, "line 1 is no JSON: maximum recursion depth"),
    ],
)
def test_a_key_field_that_cannot_be_a_key(line: bytes, said: str) -> None:
    """The line is named."""
    parser = LineParser("t", Producing(key_field="id"))
    with pytest.raises(ConfigurationError, match=said):
        parser.record(line, "line 1")


@pytest.mark.parametrize("arguments", [("produce", "t"), ("topics", "delete", "t")])
def test_a_closed_standard_input(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python has no ``sys.stdin`` then. One sentence, before anything is connected."""
    monkeypatch.setattr(sys, "stdin", None)
    assert run(arguments) == 2
    assert "standard input is" in capsys.readouterr().err


def test_options_that_are_no_utf_8() -> None:
    """A shell may pass any bytes; Python has them as surrogates."""
    how = Producing(key_separator="\udcff", header=("a=\udcfe",))
    output = LineParser("t", how).record(b"k\xffv", "line 1")
    assert (output.key, output.value, output.headers) == (b"k", b"v", (("a", b"\xfe"),))
