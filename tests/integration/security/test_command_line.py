"""The lines to copy: of ``docs/security.md``, and those that ``aioparallel.testing.local_kafka`` prints."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from aioparallel.testing import LocalKafka, Secured, local_kafka
from aioparallel.testing.processes.child import Child
from tests.conftest import PASSWORD
from tests.support.command_line import invoke
from tests.support.waiting import DEADLINE

pytestmark = pytest.mark.real

PAGE = (Path(__file__).parents[3] / "docs/security.md").read_text()


def _exports(text: str) -> dict[str, str]:
    return {name: value.strip("'") for name, value in re.findall(r"\b(AIOPARALLEL_\w+)=(\S+)", text)}


async def test_the_lines_of_the_page(secured_kafka: LocalKafka, tmp_path: Path) -> None:
    """With the reader's files and brokers in their place."""
    (lines,) = re.findall(r"```sh\n(export.*?)```", PAGE, re.DOTALL)
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    variables = _exports(lines)
    variables["AIOPARALLEL_BOOTSTRAP_SERVERS"] = secured_kafka.secured.bootstrap_servers("SASL_SSL")
    variables["AIOPARALLEL_PASSWORD_FILE"] = str(tmp_path / variables["AIOPARALLEL_PASSWORD_FILE"])
    variables["AIOPARALLEL_CA_FILE"] = str(secured_kafka.secured.authority.ca_file)
    *_, command = lines.split("\n", 3)[:3]
    await secured_kafka.create_topic("orders.dlq")
    ran = await asyncio.to_thread(invoke, *command.split()[1:], environment=variables)
    assert (ran.exit_code, "0 open letters" in ran.output or "no open letter" in ran.output.lower()) == (0, True), ran


async def test_a_closed_broker_to_try_things_out(
    secured_kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says where it is, how programs reach each listener, and what to export. The broker is the one of all tests:
    starting another one would prove the same."""
    (arguments,) = re.findall(r"python -m aioparallel\.testing\.local_kafka (.*)", PAGE)
    wanted: list[object] = []

    def secured(users: dict[str, str]) -> Secured:
        wanted.append(users)
        return secured_kafka.secured

    def started(**options: object) -> contextlib.AbstractContextManager[LocalKafka]:
        wanted.append(options["secured"])
        return contextlib.nullcontext(secured_kafka)

    class CtrlC:
        def wait(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(local_kafka, "Secured", secured)
    monkeypatch.setattr(local_kafka, "LocalKafka", started)
    monkeypatch.setattr(f"{local_kafka.__name__}.threading", SimpleNamespace(Event=CtrlC))
    local_kafka.main(arguments.split())
    monkeypatch.undo()
    said = capsys.readouterr().out
    assert wanted == [{"me": "the-password"}, secured_kafka.secured]
    assert f"runs at {secured_kafka.bootstrap_servers} " in said
    assert len(re.findall(r"127\.0\.0\.1:\d+ +Security\(", said)) == 4
    ran = await asyncio.to_thread(invoke, "dlq", "list", "nothing.dlq", environment=_exports(said))
    assert "topic not found" in ran.stderr, ran.stderr


async def test_the_module_can_be_run(tmp_path: Path) -> None:
    """As the page runs it; here only to see that the jars are there."""
    command = [sys.executable, "-m", local_kafka.__name__, "--prepare"]
    child = Child("prepare", command, log=tmp_path / "log", directory=tmp_path)
    async with asyncio.timeout(DEADLINE), child:
        assert "Apache Kafka" in await anext(child.lines())
