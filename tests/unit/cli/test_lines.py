"""What ``aioparallel produce`` makes of its input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

import pytest

from aioparallel.cli.app import run
from aioparallel.cli.produce import reading
from aioparallel.cli.produce.command import Producing
from aioparallel.cli.produce.lines import LineParser
from aioparallel.cli.produce.producing import _Sending
from aioparallel.clients.aiokafka import AiokafkaProducer
from aioparallel.delivery.producer import PendingOutput
from aioparallel.records.errors import ConfigurationError, ProduceFailed
from aioparallel.records.record import Produced
from tests.support.command_line import invoke


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


class Answers:
    """A producer that answers at once: by the value, with a failure that is passing, or not, or with a place."""

    def send_one(self, delivery: PendingOutput) -> None:
        """Answer."""
        if delivery.output.value in (b"late", b"refused"):
            passing = delivery.output.value == b"late"
            delivery.failed(ProduceFailed("t", 0, "no", passing=passing))
        else:
            delivery.placed(Produced("t", 0, 0, 0))


async def test_what_is_said_of_lines_without_an_acknowledgement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their batch may have reached the log: whoever sends them again should know."""
    file = tmp_path / "lines"
    file.write_bytes(b"late\nrefused\nwell\n")
    sending = _Sending(cast("AiokafkaProducer", Answers()))
    await sending.run([file], LineParser("t", Producing()))
    sending.report("t")
    said = capsys.readouterr().err
    assert f"line 1 of {file} was not acknowledged and may be written or not" in said
    assert f"line 2 of {file} was not written" in said
    assert "1 record written to t, 1 line not written, 1 line not acknowledged: they may be written or not." in said


async def test_input_without_line_ends_does_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A line that no broker takes is refused while it is read; the lines before it have arrived."""
    monkeypatch.setattr(reading, "LONGEST", 1_000_000)
    path = tmp_path / "zeros"
    path.write_bytes(b"first\n" + bytes(3_000_000))
    got: list[bytes] = []

    async def read(descriptor: int) -> None:
        async for lines in reading.lines_of(descriptor):
            got.extend(lines)

    with path.open("rb", buffering=0) as file, pytest.raises(ConfigurationError, match="longer than 1,000,000 bytes"):
        await read(file.fileno())
    assert got == [b"first"]


def test_help_says_where_records_without_a_key_go() -> None:
    """A few of them are all in one partition, and keys spread them."""
    said = " ".join(invoke("produce", "--help", environment={"COLUMNS": "140"}).output.split())
    assert "Records without a key go to one partition until its batch is full or sent" in said
    assert "Keys spread them: --key-separator or --key-field" in said
