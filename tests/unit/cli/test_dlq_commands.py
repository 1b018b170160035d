from __future__ import annotations

import pytest

from aioparallel.cli.dlq import dead_letter_topic as opening
from tests.support.command_line import invoke

NOWHERE = ["--bootstrap-servers", "nowhere:1"]


@pytest.mark.parametrize("command", ["list", "show", "replay", "drop"])
def test_help_teaches(command: str) -> None:
    """Each command's help has the options for choosing letters, and examples."""
    result = invoke("dlq", command, "--help", environment={"COLUMNS": "140"})
    assert result.exit_code == 0
    options = "--partition --offset --offsets --origin --error --since --until --key --limit --newest --group"
    for part in (*options.split(), "--client-option", "Examples", f"aioparallel dlq {command} orders.dlq"):
        assert part in result.output


def test_help_of_replay_names_the_other_groups() -> None:
    """A replayed record reaches every group of its topic; the remedy stands there."""
    said = " ".join(invoke("dlq", "replay", "--help", environment={"COLUMNS": "140"}).output.split())
    assert "Every consumer group that reads the topic gets these records again" in said
    assert "--to sends them to another topic" in said


def test_help_of_the_whole() -> None:
    """`aioparallel dlq` alone says what there is, and what settled means."""
    result = invoke("dlq", "--help", environment={"COLUMNS": "140"})
    for part in ("list", "show", "replay", "drop", "settle"):
        assert part in result.output


@pytest.mark.parametrize("command", ["replay", "drop"])
def test_nobody_to_ask(command: str) -> None:
    """Not on a terminal and without --yes or --dry-run: exit code 2 before anything is connected to."""
    result = invoke("dlq", command, "orders.dlq", *NOWHERE)
    assert result.exit_code == 2
    assert "--yes skips the question" in result.output


@pytest.mark.parametrize(
    "options",
    [
        ["--since", "yesterday"],
        ["--offset", "3"],
        ["--partition", "0", "--offsets", "9-3"],
        ["--origin", "a:b"],
        ["--limit", "1", "--newest", "1"],
        ["--client-option", "nope"],
        ["--client-option", "nope=1"],
        ["--limit", "0"],
    ],
)
def test_wrong_use(options: list[str]) -> None:
    """A wrong option is a sentence that names it, and exit code 2, before anything is connected to."""
    result = invoke("dlq", "list", "orders.dlq", *NOWHERE, *options)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert result.stderr.startswith("ERROR ")
    assert options[-2] in result.stderr


def test_unreachable_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not answer is one line and exit code 1."""
    monkeypatch.setattr(opening, "CONNECT_TIMEOUT", 0.5)
    result = invoke("dlq", "list", "orders.dlq", "--bootstrap-servers", "127.0.0.1:1")
    assert result.exit_code == 1
    assert result.output.startswith("ERROR no Kafka broker answered at 127.0.0.1:1")
    assert len(result.output.splitlines()) == 1


def test_a_wrong_variable_names_its_option() -> None:
    """What the environment gives is refused as the option that it stands for."""
    environment = {"AIOPARALLEL_CLIENT_OPTIONS": "client_id=a nope=1"}
    ran = invoke("dlq", "list", "orders.dlq", *NOWHERE, environment=environment)
    assert ran.exit_code == 2
    assert ran.stderr.startswith("ERROR --client-option nope='1': aiokafka has no such option")
