"""A job that copies one topic to another, and the members of a group that do it, each a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self, TypedDict

from tests.support.children.consumer_process import end_child

__all__ = ["Acknowledged", "CopyJob", "Member", "Members", "Sample"]

_ROOT: Final = Path(__file__).resolve().parents[2]
_END_TIMEOUT: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class CopyJob:
    """What each member is to do.

    ``handler_seconds``: how long each handler sleeps, until the member is told to hurry; with ``max_concurrency`` of
    them at once it sets the rate. Times are seconds.
    """

    bootstrap_servers: str
    source: str
    target: str
    group_id: str
    delivery_timeout: float
    handler_seconds: float
    max_concurrency: int = 100
    session_timeout: float = 30.0
    heartbeat_interval: float = 3.0

    def text(self) -> str:
        """The job as one argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> CopyJob:
        """The job back from :meth:`text`."""
        return cls(**json.loads(text))


class Sample(TypedDict):
    """What a member says of itself ten times a second, as JSON."""

    succeeded: int
    producing: int
    buffered: int
    lag: dict[str, int | None]
    """By partition of the source: records that are not complete."""


class Acknowledged(NamedTuple):
    """An output that a broker acknowledged; four 64-bit numbers in a member's file."""

    milliseconds: int
    """CLOCK_MONOTONIC."""
    partition: int
    offset: int
    number: int


def _numbers(path: Path) -> Sequence[int]:
    """64-bit numbers, without the last one if it is cut."""
    numbers = array("q")
    written = path.read_bytes()
    numbers.frombytes(written[: len(written) // 8 * 8])
    return numbers


class Member:
    """One member. Its warnings and errors, and what was acknowledged to it, stand in files of their own."""

    def __init__(self, job: CopyJob, directory: Path, name: str) -> None:
        self.name = name
        self.killed = False
        self.last: Sample | None = None
        self._acknowledged, self._again = directory / f"{name}.acknowledged", directory / f"{name}.again"
        self._acknowledged.touch()
        self._again.touch()
        self._log = directory / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.copying.member",
                    job.text(),
                    str(self._acknowledged),
                    str(self._again),
                ],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):  # SIGKILL may have cut it
                self.last = json.loads(line)

    def hurry(self) -> None:
        """Let its handlers return at once from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"hurry\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL. Returns when it has ended."""
        self.killed = True
        self.close()

    def end(self) -> None:
        """Let it drain, commit and leave. Raises AssertionError when it does not end well within a minute."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(_END_TIMEOUT)
        assert code == 0, f"{self.name} ended with code {code}. {self.log_tail()}"

    def close(self) -> None:
        """Leave no process behind."""
        end_child(self._process, self._reader)

    def check(self) -> None:
        """Raises AssertionError when it has ended though nobody killed it."""
        code = self._process.poll()
        assert self.killed or code is None, f"{self.name} ended with code {code}. {self.log_tail()}"

    def acknowledged(self) -> list[Acknowledged]:
        """What was acknowledged to it, in that order; of a killed one without the last tenth of a second."""
        numbers = _numbers(self._acknowledged)
        return [Acknowledged(*numbers[at : at + 4]) for at in range(0, len(numbers) - 3, 4)]

    def again(self) -> Sequence[int]:
        """The numbers of the records that it tried again, once for each time: the handler never fails, so each time a
        delivery had given up. Of a killed one without the last tenth of a second."""
        return _numbers(self._again)

    def log(self) -> str:
        """Its warnings and errors."""
        return self._log.read_text(errors="replace")

    def log_tail(self) -> str:
        """The last of them, for messages."""
        return f"The log of {self.name} ends with:\n" + "\n".join(self.log().splitlines()[-15:])


class Members:
    """The members of one group; a context manager that leaves none behind."""

    def __init__(self, job: CopyJob, directory: Path) -> None:
        self._job = job
        self._directory = directory
        self._hurried = False
        self.all: list[Member] = []

    @property
    def living(self) -> list[Member]:
        """Those not killed."""
        return [member for member in self.all if not member.killed]

    def start(self) -> Member:
        """One more."""
        member = Member(self._job, self._directory, f"member-{len(self.all) + 1}")
        self.all.append(member)
        if self._hurried:
            member.hurry()
        return member

    def hurry(self) -> None:
        """No more pace, also for members to come."""
        self._hurried = True
        for member in self.living:
            member.hurry()

    def left(self) -> dict[int, int]:
        """Records that are not complete, by partition of the source; partitions that nobody holds are left out."""
        known: dict[int, int] = {}
        for member in self.living:
            member.check()
            for partition, lag in (member.last["lag"] if member.last else {}).items():
                if lag is not None:
                    known[int(partition)] = lag
        return known

    def acknowledged(self) -> list[Acknowledged]:
        """To all of them, in order of time."""
        return sorted(one for member in self.all for one in member.acknowledged())

    def again(self) -> Counter[int]:
        """How often each number was tried again, because its delivery had given up; 0 for the others."""
        return Counter(number for member in self.all for number in member.again())

    def log_tails(self) -> str:
        """For messages."""
        return "\n".join(member.log_tail() for member in self.all)

    def wait_until_first(self, timeout: float) -> None:
        """Until every living member has completed a record. Raises AssertionError."""
        deadline = time.monotonic() + timeout
        while not all(member.last and member.last["succeeded"] for member in self.living):
            assert time.monotonic() < deadline, f"no record within {timeout:g} s. {self.log_tails()}"
            self.left()
            time.sleep(0.02)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for member in self.all:
            member.close()
