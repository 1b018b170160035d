from __future__ import annotations

import json
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from io import StringIO
from typing import cast

import pytest
from rich.console import Console

from aioparallel.cli.cluster import parse_client_options
from aioparallel.cli.console import age, counted, plain_text
from aioparallel.cli.dlq import looking
from aioparallel.cli.dlq.commands import Access, Showing
from aioparallel.cli.dlq.dead_letter_topic import OpenTopic
from aioparallel.cli.dlq.holding import Hold
from aioparallel.cli.dlq.looking import Search, print_json, print_table
from aioparallel.cli.dlq.marks import Marks
from aioparallel.cli.dlq.printing import details, json_summary, readable, row
from aioparallel.cli.dlq.selecting import DeadLetter, Selection
from aioparallel.cli.formats import as_json
from aioparallel.delivery.letters import read_letter
from aioparallel.group.client import Client, Committed, Fetched, Span
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition

from .dead_letters import P0, TOPIC, Group, Place, letter_record, read_of, stranger


class Log:
    """The part of a client that reads: what it was given."""

    def __init__(self, *reads: Fetched) -> None:
        self._reads = reads

    def read(self, spans: Mapping[TopicPartition, Span]) -> AsyncGenerator[Fetched, None]:
        return read_of(*self._reads)


def opened(*reads: Fetched, base: int = 0, end: int = 1000) -> OpenTopic:
    """A topic with one partition, whose letters below ``base`` are settled."""
    marks = Marks(cast("Client", Group()), "g", {P0: Committed(base, "")}, {P0: 0}, Place())
    return OpenTopic(TOPIC, cast("Client", Log(*reads)), {}, marks, cast("Hold", Place()), {0: 0}, {0: end})


async def listed(*reads: Fetched, selection: Selection | None = None, base: int = 0, everything: bool = False) -> str:
    """What list prints, on 120 columns."""
    output = StringIO()
    console = Console(file=output, width=120, color_system=None)
    await print_table(opened(*reads, base=base), selection or Selection(), console, everything=everything)
    return output.getvalue()


def test_readable_values() -> None:
    """JSON is laid out, text is text, anything else is dumped, and a long one is cut."""
    assert readable(b'{"a": [1, "\xc3\xb6"]}') == '{\n  "a": [\n    1,\n    "ö"\n  ]\n}'
    assert readable(b"1e5") == "1e5"
    assert readable("grün".encode()) == "grün"
    assert readable(b"") == "(empty)"
    assert readable(None) == "(none)"
    assert readable(b"\x00AZ\xff") == "00000000  00 41 5a ff                                      .AZ."
    dump = readable(b"\xff" * 600).splitlines()
    assert len(dump) == 33
    assert dump[-1] == "... 600 bytes in all; --raw writes them out"


def test_texts_cannot_steer_the_terminal() -> None:
    """Escape sequences in a message are shown, not obeyed."""
    assert plain_text("a\x1b[2J\r\nb\u202e") == "a\\x1b[2J\\x0d\nb\\x202e"
    assert plain_text("a\n  b\t\tc", one_line=True) == "a b c"


def test_ages() -> None:
    """In the largest unit that makes one or more; a clock ahead of ours is now."""
    assert [age(seconds) for seconds in (-5, 1, 59, 60, 3599, 3600, 86_400)] == [
        "now",
        "1 s ago",
        "59 s ago",
        "1 min ago",
        "59 min ago",
        "1 h ago",
        "1 d ago",
    ]
    assert (counted(1, "letter"), counted(1200, "letter")) == ("1 letter", "1,200 letters")


def test_bytes_in_json() -> None:
    """Text is text; what is none is base64."""
    assert (as_json(None), as_json(b"a"), as_json(b"\xff")) == (None, "a", {"base64": "/w=="})


async def test_list_keeps_to_the_newest_hundred() -> None:
    """Of many letters the newest hundred are shown, the newest last, and the footer counts all."""
    records = [letter_record(offset, at=1000.0 + offset) for offset in range(150)]
    lines = (await listed(Fetched(P0, records, 150))).splitlines()
    assert len(lines) == 1 + 100 + 2
    assert lines[1].split()[:2] == ["0", "50"]
    assert lines[100].split()[:2] == ["0", "149"]
    assert lines[101] == "orders.dlq: 150 open letters"
    assert lines[102].startswith("Shown: the 100 newest.")


async def test_long_messages_keep_a_row_to_one_line() -> None:
    """A message of many lines is cut to the width."""
    lines = (await listed(Fetched(P0, [letter_record(1, message="long \n" * 200)], 2))).splitlines()
    assert len(lines) == 3
    assert lines[1].endswith("…")
    assert len(lines[1]) <= 120


async def test_list_all_tells_states() -> None:
    """--all has settled letters and strangers, each with its state, and counts them."""
    reads = Fetched(P0, [letter_record(0), letter_record(1, error="Other"), stranger(2)], 3)
    output = await listed(reads, base=1, everything=True)
    lines = output.splitlines()
    assert [line.split()[2] for line in lines[1:4]] == ["no", "settled", "open"]
    assert "orders.dlq: 1 open letter, 1 settled (1 Other, 1 app.Refused)" in output
    assert "1 record is no letter" in output


@pytest.mark.parametrize(
    ("selection", "count", "said"),
    [
        (Selection(), 1, ""),
        (Selection(error="Refused"), 10, "Shown: the 10 newest of 14 letters that match. --newest N shows more.\n"),
        (Selection(error="Refused", newest=12), 12, ""),
        (Selection(error="Refused", limit=3), 3, ""),
        (Selection(partition=(0,), offset=3), 1, ""),
        (Selection(error="Other"), 0, "orders.dlq: no open letter matches; --all includes settled ones.\n"),
    ],
)
async def test_show_prints_the_newest_ten(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    selection: Selection,
    count: int,
    said: str,
) -> None:
    """Each letter takes many lines; how many more match is said."""
    records = [letter_record(offset, at=1000.0 + offset) for offset in range(14)]

    @asynccontextmanager
    async def topic(*_: object) -> AsyncIterator[OpenTopic]:
        yield opened(Fetched(P0, records, 14))

    monkeypatch.setattr(looking, "open_topic", topic)
    await looking.show_letters("orders.dlq", selection, Showing(), Access())
    output = capsys.readouterr()
    assert len(re.findall("^orders.dlq, partition 0, offset ", output.out, re.MULTILINE)) == count
    assert output.err == said
    if not selection.limit and not selection.offset and count:
        assert "offset 13: open" in output.out


async def test_list_counts_what_matches() -> None:
    """With a criterion the footer says that it counts only what meets it."""
    reads = Fetched(P0, [letter_record(0), letter_record(1, error="Other")], 2)
    output = await listed(reads, selection=Selection(error="Other"))
    assert "orders.dlq: 1 open letter that matches\n" in output
    assert "Refused" not in output


async def test_json_lines_stream() -> None:
    """--json has all of them without a limit, in the order of the log."""
    records = [letter_record(offset, at=1000.0 - offset) for offset in range(150)]
    output = StringIO()
    search = Search(opened(Fetched(P0, records, 150)), Selection(), everything=False)
    await print_json(search.letters(json_summary), Console(file=output))
    assert [json.loads(line)["offset"] for line in output.getvalue().splitlines()] == list(range(150))


def test_details() -> None:
    """Everything a letter tells is there."""
    record = letter_record(4, key=None, origin=("orders", 1, 17))
    text = details(DeadLetter(record, read_letter(record), settled=True), now=1060.0)
    for part in (
        "offset 4: settled",
        "orders, partition 1, offset 17",
        "1 min ago",
        "3 in group billing",
        "app.Refused: no",
    ):
        assert part in text
    assert text.index("trace: abc") < text.index("key") < text.index("(none)") < text.index("value")
    assert "aioparallel." not in text


def test_the_deliveries_of_a_share_group() -> None:
    """Attempts are those of the last one."""
    record = letter_record(4)
    letter = read_letter(record)
    assert letter is not None
    assert "deliver" not in details(DeadLetter(record, letter, settled=True), now=1060.0)
    assert "deliveries" not in json_summary(DeadLetter(record, letter, settled=True))
    dead = DeadLetter(record, letter._replace(deliveries=5), settled=True)
    assert "3 in group billing, in delivery 5: those in earlier deliveries are not counted" in details(dead, now=1060.0)
    assert json_summary(dead)["deliveries"] == 5
    assert (row(dead).attempts, row(DeadLetter(record, letter, settled=True)).attempts) == ("3 (delivery 5)", "3")


def test_spans() -> None:
    """Open letters are read from the committed offset on, all from the log's start, and offsets narrow both."""
    topic = opened(base=10, end=50)
    assert topic.spans(settled_too=False) == {0: Span(10, 50)}
    assert topic.spans(settled_too=True) == {0: Span(0, 50)}
    assert topic.spans(settled_too=True, within=Span(5, 7)) == {0: Span(5, 7)}
    assert topic.spans(settled_too=False, within=Span(5, 7)) == {0: Span(10, 10)}
    assert topic.spans(settled_too=True, within=Span(90, 91)) == {0: Span(90, 90)}


def test_client_options() -> None:
    """Values take the type of aiokafka's default; a password of digits stays a text; TLS brings a context."""
    options = parse_client_options(["request_timeout_ms=500", "check_crcs=False", "sasl_plain_password=12=3"])
    assert options == {"request_timeout_ms": 500, "check_crcs": False, "sasl_plain_password": "12=3"}
    assert isinstance(parse_client_options(["security_protocol=SASL_SSL"])["ssl_context"], ssl.SSLContext)
    assert "ssl_context" not in parse_client_options(["security_protocol=SASL_PLAINTEXT"])


@pytest.mark.parametrize("text", ["nothing", "=x", "request_timeout_ms=soon", "check_crcs=1"])
def test_wrong_client_options(text: str) -> None:
    """Each is refused with the option's name."""
    with pytest.raises(ConfigurationError, match="client_options"):
        parse_client_options([text])
