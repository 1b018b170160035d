"""A consumer process as the test sees it: started, watched, ended."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from tests.support.children.job import Job

__all__ = ["ConsumerProcess", "Sample", "end_child", "number"]

Sample = dict[str, object]

_ROOT: Final = Path(__file__).resolve().parents[2]
_END_TIMEOUT: Final = 60.0
_POLL: Final = 0.05


def end_child(process: subprocess.Popen[bytes], reader: threading.Thread) -> None:
    """Leave nothing of a child behind: the process, who reads its output, the pipes."""
    if process.poll() is None:
        process.kill()
    process.wait()
    reader.join()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


class ConsumerProcess:
    """Runs a job in a child process; a context manager that leaves none behind.

    ``samples``: what ``stats()`` said so far, a new list each time. ``report``: what the probe measured, after
    :meth:`end`.
    """

    def __init__(self, job: Job, profile: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *profile, "-m", "tests.support.children.consumer", job.text()],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._psutil = psutil.Process(self._process.pid)
        self._samples: list[Sample] = []
        self._report: Sample | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            content = json.loads(line)
            if "sample" in content:
                self._samples.append(content["sample"])
            else:
                self._report = content["report"]

    @property
    def samples(self) -> list[Sample]:
        """The samples so far."""
        return list(self._samples)

    def resident_bytes(self) -> int:
        """The process's memory in RAM now."""
        return int(self._psutil.memory_info().rss)

    def cpu_seconds(self) -> float:
        """CPU time the process took so far."""
        times = self._psutil.cpu_times()
        return float(times.user + times.system)

    def wait_for(self, condition: Callable[[Sample], bool], timeout: float) -> Sample:
        """The first sample that fulfils this. Raises AssertionError after ``timeout`` seconds, or at its end."""
        deadline = time.monotonic() + timeout
        seen = 0
        while time.monotonic() < deadline:
            for sample in self.samples[seen:]:
                seen += 1
                if condition(sample):
                    return sample
            assert self._process.poll() is None, f"the consumer ended with code {self._process.returncode}"
            time.sleep(_POLL)
        last = self._samples[-1] if self._samples else None
        raise AssertionError(f"not within {timeout:g} s; the last sample: {last}")

    def finish(self, timeout: float) -> Sample:
        """Wait until the consumer ends by itself; its report."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            last = self._samples[-1] if self._samples else None
            raise AssertionError(f"the consumer has not ended within {timeout:g} s; the last sample: {last}") from None
        self._reader.join(timeout)
        assert code == 0, f"the consumer ended with code {code}"
        assert self._report is not None
        return self._report

    def end(self) -> Sample:
        """Stop the consumer; its report."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.finish(_END_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        end_child(self._process, self._reader)


def number(value: object) -> int:
    """A count out of a sample or a report."""
    assert isinstance(value, int)
    return value
