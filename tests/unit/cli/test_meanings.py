"""Help of a command says of an option what the library says of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from cyclopts import App

from aioparallel.cli.bench.command import BenchSettings, bench
from aioparallel.cli.kmq.commands import QueueAccess, Trackers, tracker_command
from aioparallel.cli.security import Secure
from aioparallel.config.handling import Handling
from aioparallel.config.option_docs import described, options_of
from aioparallel.config.security import Security
from aioparallel.queues.kmq import RedeliveryTracker
from tests.support.command_line import invoke


def helps(command: Callable[..., object]) -> dict[str, str]:
    """By the name of a field."""
    app = App()
    app.default(command)
    found = app.assemble_argument_collection(parse_docstring=True)
    return {one.field_info.name: (one.parameter.help or "").replace("`", "") for one in found}


def plain(meaning: str) -> str:
    text = " ".join(meaning.split()).replace("`", "").replace("None:", "Not given:")
    return text[0].upper() + text[1:]


def test_a_tracker() -> None:
    """Its options have the words of RedeliveryTracker, and those of the command their own."""
    text = RedeliveryTracker.__doc__
    library = {name: meaning for names, meaning in described(text) for name in names}
    found = helps(tracker_command)
    for name in ("dead_letter", "max_redeliveries", "use_now_after", "marker_topic"):
        assert found[name] == plain(library[name])
    assert found["max_request_size"].startswith("Bytes of the largest record")
    assert found["skip_unreadable"].startswith("Skip just this batch")
    assert [
        one.name for kind in (Trackers, QueueAccess) for one in dataclasses.fields(kind) if not found[one.name]
    ] == ["secure"]


def test_security() -> None:
    """The words of Security; other options are named as flags. What is only typed here is said here."""
    library = {one.name: plain(one.meaning) for one in options_of(Security)}
    found = helps(tracker_command)
    for name in ("mechanism", "password_file", "token_file", "ca_file"):
        assert found[name] == library[name]
    assert found["security_protocol"] == library["protocol"]
    assert found["certificate_file"] == library["certificate_file"].replace("ca_file", "--ca-file")
    assert "AIOPARALLEL_PASSWORD" in found["username"]
    assert [one.name for one in dataclasses.fields(Secure) if not found[one.name]] == []


def test_bench() -> None:
    """``--concurrency`` is ``max_concurrency``."""
    library = {one.name: plain(one.meaning) for one in options_of(Handling)}
    found = helps(bench)
    assert found["concurrency"] == library["max_concurrency"]
    assert [one.name for one in dataclasses.fields(BenchSettings) if not found[one.name]] == []


def test_it_is_printed() -> None:
    """By the command itself."""
    assert "Maximum number of redeliveries of one record" in " ".join(invoke("kmq", "tracker", "--help").stdout.split())
