from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from aioparallel import cli
from aioparallel.cli import console
from aioparallel.records.errors import AuthenticationFailed, BrokerUnreachable, ConfigurationError, TopicNotFound
from tests.support.command_line import invoke


def hide(monkeypatch: pytest.MonkeyPatch, module: object, *names: str) -> None:
    """Let these packages look as if they were not installed."""
    find_spec = importlib.util.find_spec

    def found(name: str) -> ModuleSpec | None:
        return None if name in names else find_spec(name)

    monkeypatch.setattr(module, "find_spec", found)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cyclopts the command ends with a sentence naming the extras, and no traceback."""
    hide(monkeypatch, cli, "cyclopts")
    with pytest.raises(SystemExit) as ended:
        cli.main()
    message = str(ended.value)
    assert "needs cyclopts" in message
    assert "pip install 'aioparallel[cli]'" in message
    assert "pip install 'aioparallel[bench]'" in message


def test_bench_without_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what a command needs it names the missing packages and the extra."""
    hide(monkeypatch, console, "confluent_kafka")
    result = invoke("bench")
    assert result.exit_code == 1
    assert "needs confluent_kafka" in result.output
    assert "pip install 'aioparallel[bench]'" in result.output


def test_version() -> None:
    """--version prints the version of the package."""
    assert invoke("--version").stdout == f"aioparallel {importlib.metadata.version('aioparallel')}\n"


@pytest.mark.parametrize("command", ["", "dlq", "dlq list", "dlq replay", "dlq drop", "bench", "broker"])
def test_help_in_a_pipe(command: str) -> None:
    """It fits 80 columns, has no colours, and shows flags as flags: without a value, a default or a --no-."""
    ran = invoke(*command.split(), "--help", environment={"COLUMNS": "80"})
    assert ran.exit_code == 0
    assert max(map(len, ran.stdout.splitlines())) <= 80
    assert "\x1b" not in ran.stdout
    assert not re.search(r"--no-(?!mark|peers)|BOOL|default: (False|None|\(\))", ran.stdout)


@pytest.mark.parametrize("command", [["--help"], ["dlq", "list", "--help"], ["--version"]])
def test_help_waits_for_no_client(command: list[str]) -> None:
    """Neither Kafka clients nor what draws and counts is imported before a command runs."""
    heavy = ("aiokafka", "confluent_kafka", "numpy", "matplotlib", "altair", "aiohttp", "httpx")
    code = f"import sys; from aioparallel.cli.app import run; run({command}); print({{*{heavy}}} & {{*sys.modules}})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.endswith("set()\n")


def test_a_reader_that_has_seen_enough() -> None:
    """A closed pipe, as behind `| head`, ends help without a word."""
    code = "import sys; sys.stdin.read(); from aioparallel.cli import main; main()"
    command = [sys.executable, "-c", code, "dlq", "list", "--help"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


def test_completion_is_installed_for_the_shell(tmp_path: Path) -> None:
    """With every option of every command."""
    ran = invoke("--install-completion", environment={"HOME": str(tmp_path), "SHELL": "/bin/bash"})
    assert ran.exit_code == 0
    (script,) = (path for path in tmp_path.rglob("aioparallel") if path.is_file())
    assert "--same-partition" in script.read_text()


def test_commands_and_options_that_do_not_exist() -> None:
    """Exit code 2 and the nearest one that does."""
    for arguments, near in ((["dql"], '"dlq"'), (["dlq", "list", "orders.dlq", "--sinze", "2h"], "--since")):
        ran = invoke(*arguments)
        assert ran.exit_code == 2
        assert f"Did you mean {near}" in ran.stderr


def test_ctrl_c_while_it_is_still_importing() -> None:
    """It ends as it does later: one word, and the exit code of an interruption."""
    code = (
        "import signal, sys\n"
        "from aioparallel.cli import main\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'aioparallel.cli.app': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "Stopped.\n")


@pytest.mark.parametrize(
    ("option", "typed"),
    [
        ("since", "--since='x': wrong, see --client-option"),
        ("Access since", "--since='x': wrong, see --client-option"),
        ("client_options['sasl_mechanism']", "--client-option sasl_mechanism='x': wrong, see --client-option"),
        ("somewhere else", "somewhere else='x': wrong, see --client-option"),
    ],
)
def test_options_are_named_as_they_are_typed(option: str, typed: str) -> None:
    """Whatever the library calls them."""
    flags = {"since": "--since", "client_options": "--client-option"}
    assert console.as_typed(ConfigurationError(option, "x", "wrong, see client_options"), flags) == typed


def test_a_flag_that_was_not_given_is_told_as_that() -> None:
    """Nobody types ``--yes=False``."""
    said = console.as_typed(ConfigurationError("yes", False, "nobody to ask"), {"yes": "--yes"})
    assert said == "without --yes: nobody to ask"


def test_other_errors_name_options_as_they_are_typed() -> None:
    """Not only those that are about one option."""
    flags = {"bootstrap_servers": "--bootstrap-servers", "client_options": "--client-option"}
    said = console.as_typed(BrokerUnreachable("localhost:1", 10, "refused"), flags)
    assert "check --bootstrap-servers, the network, and whether the cluster wants TLS or a login" in said


@pytest.mark.parametrize(
    ("advice", "said"),
    [
        (
            'give security=Security("SSL"), or "SASL_SSL" with a login',
            'give --security-protocol SSL, or "SASL_SSL" with a login',
        ),
        (
            'give security=Security("SASL_SSL", mechanism=...), or "SASL_PLAINTEXT" if it does not use TLS',
            'give --security-protocol SASL_SSL --mechanism ..., or "SASL_PLAINTEXT" if it does not use TLS',
        ),
        ('leave security out, or use "SASL_PLAINTEXT"', 'leave --security-protocol out, or use "SASL_PLAINTEXT"'),
        ("give certificate_file, and key_file, in Security", "give --certificate-file, and --key-file"),
    ],
)
def test_advice_about_security_names_flags(advice: str, said: str) -> None:
    """A command has no Security to pass."""
    names = ("security_protocol", "mechanism", "certificate_file", "key_file")
    flags = {name: "--" + name.replace("_", "-") for name in names}
    assert console.as_typed(AuthenticationFailed("kafka:9093", "why", advice), flags).endswith(f"why; {said}")


def test_a_topic_is_named_by_a_flag() -> None:
    """Without the = of an argument in Python."""
    missing = TopicNotFound(["jobs-markers"], "kafka:9092", {"jobs-markers": "the markers; marker_topic= names it"})
    assert "(the markers; --marker-topic names it)" in console.as_typed(missing, {"marker_topic": "--marker-topic"})
    assert "(the markers; marker_topic= names it)" in console.as_typed(missing, {})


def test_as_a_module() -> None:
    """``python -m aioparallel`` is the command, under the name that people type: for interpreters whose scripts are not
    on the path."""
    ran = subprocess.run(
        [sys.executable, "-m", "aioparallel", "kmq", "--help"], capture_output=True, text=True, check=True
    )
    assert "Usage: aioparallel kmq COMMAND" in ran.stdout
