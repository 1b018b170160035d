"""The demo as it is started from a clone."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from aioparallel.testing.event_log import read_events

COMMAND = [sys.executable, "-m", "examples.flights"]
DEADLINE = 120.0  # seconds for anything that is waited for


def demo(output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, without a terminal."""
    command = [*COMMAND, "--output", str(output), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)


def enriched(output: Path) -> Counter[tuple[int, int]]:
    """How often each record stands in the file of enriched records."""
    with (output / "enriched.jsonl").open() as lines:
        return Counter((record["partition"], record["offset"]) for record in map(json.loads, lines))


def figure(name: str, text: str) -> list[float]:
    """The numbers in a row of the table of figures."""
    row = re.search(rf"│ {re.escape(name)} [^\n]*", text)
    assert row, text
    return [float(number.replace(",", "")) for number in re.findall(r"[\d,.]*\d", row[0].removeprefix(f"│ {name}"))]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Until it is true, or fail."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE:g} s for: {what}"
        time.sleep(0.02)


def others(output: Path) -> list[psutil.Process]:
    """Living processes that were told to write into this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            told = str(output / "evidence") in " ".join(process.cmdline())
            if told and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


@contextmanager
def running_demo(output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command in the middle of its plain loop."""
    command = [*COMMAND, "--output", str(output), "--records", "1000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            events = output / "evidence" / "plain-0.events"
            wait_for(lambda: bool(read_events(events)), "the plain loop to begin")
            assert len(others(output)) == 2  # the service and the consumer
            yield process
        finally:
            process.kill()


def test_demo_shows_the_speed_up_and_keeps_its_promises(tmp_path: Path) -> None:
    """The demo ends with exit code 0, every check passes, each flight stands in the file exactly once."""
    done = demo(tmp_path, "--records", "2000", "--plain-records", "30")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout.count("PASS"), done.stdout.count("FAIL")) == (4, 0)
    assert "Traceback" not in done.stdout + done.stderr
    assert figure("records", done.stdout) == [30, 2000]
    # Loose, because the machine may be busy; the default of 20,000 records shows 30 and more.
    assert figure("speed-up", done.stdout)[1] > 3
    lines = enriched(tmp_path)
    assert (len(lines), lines.total()) == (2000, 2000)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert others(tmp_path) == []


@pytest.mark.slow
def test_killed_consumer_loses_nothing(tmp_path: Path) -> None:
    """With two SIGKILLs on its way nothing is lost or out of order, and every line too many is counted."""
    done = demo(tmp_path, "--records", "800", "--plain-records", "5", "--concurrency", "50", "--kill", "--kills", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout.count("PASS"), done.stdout.count("FAIL")) == (5, 0)
    assert "2 of 2" in done.stdout
    lines = enriched(tmp_path)
    assert len(lines) == 800
    assert figure("duplicates (lines of the file)", done.stdout) == [lines.total() - 800]
    assert others(tmp_path) == []


@pytest.mark.slow
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    """An interrupted demo says so with exit code 130 and leaves no process behind."""
    with running_demo(tmp_path) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 130
        assert others(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_nothing_outlives_the_demo(number: signal.Signals, tmp_path: Path) -> None:
    """However the demo is ended, its service and its consumer end as well."""
    with running_demo(tmp_path) as process:
        process.send_signal(number)
        process.wait(DEADLINE)
        wait_for(lambda: others(tmp_path) == [], "the other processes to end")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--records", "0"], '"0" for --records. Must be >= 1'),
        pytest.param(["--records", "336777"], '"336777" for --records. Must be <= 336776', marks=pytest.mark.slow),
        pytest.param(["--partitions", "many"], "--partitions", marks=pytest.mark.slow),
        pytest.param(["--broker", "other"], "--broker", marks=pytest.mark.slow),
        (["--kill", "--records", "299"], "--kills=3: each needs 100 records, so 299 records allow 2"),
    ],
)
def test_wrong_options_are_refused(options: list[str], sentence: str, tmp_path: Path) -> None:
    """With a sentence that names the option, before anything is started or written."""
    done = demo(tmp_path / "out", *options)
    assert done.returncode == 2
    assert sentence in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "out").exists()


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    """Is named, without a traceback."""
    (tmp_path / "file").touch()
    done = demo(tmp_path / "file" / "out")
    assert done.returncode == 1
    assert "ERROR" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
