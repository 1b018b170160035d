"""A process of a measurement: a module of this package that gets a job as JSON and tells what it sees, a line of JSON
each. It ends when its parent does, in whatever way that ends."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from aioparallel.cli.demo.process import Child, announce
from aioparallel.errors import AioparallelError

__all__ = ["Worker", "end_with_parent", "job", "tell"]

_PACKAGE: Final = "aioparallel.cli.bench"


class Worker(Child):
    """Runs ``module`` (a name within this package) on a job; what it writes to standard error goes to ``folder``."""

    def __init__(self, module: str, job: Mapping[str, object], folder: Path) -> None:
        self._said = folder / f"{module}.log"
        super().__init__(module, f"{_PACKAGE}.{module}", json.dumps(job), log=self._said)

    async def told(self, timeout: float) -> dict[str, Any]:
        """The next thing it tells.

        Raises AioparallelError when it ended instead, or said nothing for ``timeout`` seconds.
        """
        output = self.process.stdout
        assert output is not None  # a pipe was asked for
        try:
            line = await asyncio.wait_for(output.readline(), timeout)
        except TimeoutError:
            raise AioparallelError(f"the {self.name} said nothing for {timeout:g} s") from None
        if not line:
            await self.ended()
            raise AioparallelError(f"the {self.name} ended before it had told everything")
        content: dict[str, Any] = json.loads(line)
        return content

    async def ended(self) -> None:
        """Wait until it ends by itself. Raises AioparallelError, with its last words, when its exit code is not 0."""
        if code := await self.process.wait():
            said = self._said.read_text(errors="replace").strip().splitlines()
            raise AioparallelError(
                f"the {self.name} failed (exit code {code}): {said[-1] if said else 'it said nothing'}"
            )


def job() -> dict[str, Any]:
    """In the worker: its job."""
    content: dict[str, Any] = json.loads(sys.argv[1])
    return content


def tell(**content: object) -> None:
    """In the worker: a line to the parent."""
    announce(json.dumps(content))


def end_with_parent() -> None:
    """In a worker without an event loop: end the process when the parent closes its pipe, or is gone."""

    def watch() -> None:
        # Not through sys.stdin: a thread that waits within it would stop the interpreter from ending.
        while os.read(0, 1024):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
