"""The programs of docs/parallel-map.md, as they stand there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

_PAGE = Path(__file__).parents[2] / "docs" / "parallel-map.md"
_PROGRAMS = re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL)


def program(word: str) -> str:
    """The one that has this word."""
    (found,) = [str(one) for one in _PROGRAMS if word in one]
    return found


def run(code: str, folder: Path) -> str:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_list(tmp_path: Path) -> None:
    """Doubled."""
    assert sorted(run(program("[1, 2, 3]"), tmp_path).split("\n")) == ["", "1 2", "2 4", "3 6"]


def test_an_async_generator_to_a_file(tmp_path: Path) -> None:
    """Each reading once, those of a sensor in order."""
    run(program("rooms.jsonl"), tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "rooms.jsonl").read_text().splitlines()]
    failed = (tmp_path / "failed.jsonl").read_text().splitlines()
    assert len(rows) + len(failed) == 1_000
    for sensor in range(7):
        values = [row["value"] for row in rows if row["sensor"] == sensor]
        assert values == sorted(values)


def test_a_cursor_in_a_thread(tmp_path: Path) -> None:
    """In the order of its rows."""
    assert run(program("sqlite3"), tmp_path) == "2\n4\n6\n"


def test_a_thread(tmp_path: Path) -> None:
    """The sum of all."""
    assert run(program("LoopThread"), tmp_path) == f"{sum(range(100_000)) * 2}\n"


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    """Of orders; one of them is throttled at first."""
    seen: list[str] = []

    async def order(request: web.Request) -> web.Response:
        seen.append(request.path)
        if request.path.endswith("/7") and seen.count(request.path) == 1:
            return web.Response(status=429, headers={"retry-after": "0.05"})
        return web.json_response({"order": int(request.match_info["order"])})

    app = web.Application()
    app.router.add_get("/customers/{customer}/orders/{order}", order)
    server = TestServer(app)
    async with server:
        yield server


async def test_keyed_calls_over_http(server: TestServer, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the input, throttled or not."""
    code = program("httpx").replace("https://api.example.com", str(server.make_url("/")))
    names: dict[str, object] = {}
    exec(code, names)
    await names["main"]([(f"c{number % 3}", number) for number in range(20)])  # type: ignore[operator]
    assert re.findall(r"'order': (\d+)", capsys.readouterr().out) == [str(number) for number in range(20)]
