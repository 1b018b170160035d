"""A real Prometheus that scrapes each second, if it is installed."""

from __future__ import annotations

import asyncio
import json
import shutil
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aioparallel.testing.brokers.ports import free_ports
from aioparallel.testing.processes import Child
from docs.instruments import RULES
from tests.support.waiting import until

__all__ = ["Prometheus", "check_metrics", "prometheus"]

_CONFIGURATION = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: workers
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


class Prometheus:
    """A running server. Its data stay in the folder ``data``."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    async def ask(self, path: str, **arguments: str) -> Any:
        """What its HTTP API answers."""
        return await asyncio.to_thread(self._ask, f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}")

    def _ask(self, url: str) -> Any:
        with urllib.request.urlopen(url, timeout=30) as response:
            return json.loads(response.read())["data"]

    async def value(self, expression: str) -> float:
        """The single value of an expression now; 0 without one."""
        found = (await self.ask("query", query=expression))["result"]
        assert len(found) < 2, (expression, found)
        return float(found[0]["value"][1]) if found else 0.0

    async def is_scraping(self) -> bool:
        """Whether its target answers."""
        try:
            return await self.value("sum(up)") == 1
        except OSError:
            return False


@asynccontextmanager
async def prometheus(port: int, folder: Path) -> AsyncIterator[Prometheus | None]:
    """One that scrapes this port; None if there is none on this machine."""
    program = shutil.which("prometheus")
    if program is None:
        yield None
        return
    (own,) = free_ports(1)
    configuration = folder / "prometheus.yml"
    configuration.write_text(_CONFIGURATION.format(rules=RULES, port=port))
    command = [
        program,
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{own}",
    ]
    async with Child("prometheus", command, log=folder / "prometheus.log") as child:
        found = Prometheus(own)
        await until(found.is_scraping, what="a scrape by Prometheus")
        yield found
        child.terminate()
        await child.ended(30)


async def check_metrics(text: bytes) -> str:
    """What ``promtool check metrics`` finds wrong with a scrape; nothing without promtool."""
    program = shutil.which("promtool")
    if program is None:
        return ""
    process = await asyncio.create_subprocess_exec(
        program, "check", "metrics", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate(text)
    return said.decode()
