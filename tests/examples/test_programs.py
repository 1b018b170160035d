"""The programs of examples/, each started by what its own comment says, on the embedded broker."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from aioparallel.testing.processes.child import Child
from tests.support.newcomer import ROOT, Newcomer
from tests.support.waiting import DEADLINE, until


def sum_of(customer: int, count: int) -> int:
    """The amounts of a customer's orders among so many that orders.py has made."""
    return sum(10 + number % 90 for number in range(count) if number % 30 == customer)


def in_order(numbers: Iterable[tuple[str, int]]) -> bool:
    """Whether the numbers of each customer ascend."""
    by_customer: dict[str, list[int]] = defaultdict(list)
    for customer, number in numbers:
        by_customer[customer].append(number)
    return all(found == sorted(found) for found in by_customer.values())


async def end(child: Child, number: signal.Signals) -> None:
    """It ends well by a signal."""
    child.signal(number)
    await child.ended(DEADLINE)


async def test_first(tmp_path: Path) -> None:
    """Prints each record, those of a key in order; Ctrl-C ends it and the broker, both with exit code 0."""
    async with Newcomer("first", tmp_path) as newcomer:
        program = newcomer.terminals["first.py"]
        lines = [await program.line(DEADLINE) for _ in range(100)]
        found = [(line.split()[3], int(re.findall(r'"number": (\d+)', line)[0])) for line in lines]
        assert sorted(number for _, number in found) == list(range(100))
        assert in_order(found)
        await end(program, signal.SIGINT)
        await end(newcomer.terminals["broker"], signal.SIGINT)


def test_first_is_the_program_of_the_readme() -> None:
    """Line by line, but for where the broker is."""
    program = (ROOT / "examples" / "first.py").read_text().split('"""\n\n', 1)[1]
    for ours, theirs in (
        ("import os\n\n", ""),
        ('SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")\n\n\n', "\n"),
        ("bootstrap_servers=SERVERS", 'bootstrap_servers="localhost:9092"'),
    ):
        assert ours in program
        program = program.replace(ours, theirs)
    assert f"```python\n{program}```" in (ROOT / "README.md").read_text()


async def test_enrich_http(tmp_path: Path) -> None:
    """Every order is enriched, in its customer's order, or its customer is unknown and it is a dead letter."""
    async with Newcomer("enrich_http", tmp_path) as newcomer:
        enriched = [json.loads(record.value) for record in await newcomer.read("orders.enriched", 90)]
        assert all(order["customer"]["city"] for order in enriched)
        assert in_order((order["customer"]["name"], order["number"]) for order in enriched)
        letters = [json.loads(record.value) for record in await newcomer.read("orders.dlq", 10)]
        assert {letter["customer"] for letter in letters} == {"customer-7", "customer-17", "customer-27"}
        numbers = {order["number"] for order in enriched} | {letter["number"] for letter in letters}
        assert numbers == set(range(100))
        await end(newcomer.terminals["enrich_http.py"], signal.SIGTERM)


async def test_fastapi_app(tmp_path: Path) -> None:
    """Sums are right, the probes say yes; a consumer that dies is logged in one line, the instance unfit; the end is
    clean."""
    async with Newcomer("fastapi_app", tmp_path) as newcomer:

        async def all_handled() -> bool:
            stats = (await newcomer.get(newcomer.url("8000", "/stats"))).json()
            return bool(stats["consumer"]["succeeded"] == 1_000)

        await until(all_handled, what="all orders to be handled")
        answer = await newcomer.get(newcomer.url("8000", "/customers/customer-3"))
        assert answer.json() == {"customer-3": sum_of(3, 1_000)}
        health = await newcomer.get(newcomer.url("8000", "/health/ready"))
        fine = {"live": True, "ready": True, "reason": "", "restarts": 0, "problems": []}
        assert (health.status_code, health.json()) == (200, {"ready": True, "consumers": {"consumer": fine}})
        await newcomer.produce("orders", b"no order")
        await until(lambda: unfit(newcomer, newcomer.url("8000", "/health/ready")), what="the consumer to die")
        live = await newcomer.get(newcomer.url("8000", "/health/live"))
        assert live.status_code == 503
        assert live.json()["consumers"]["consumer"]["problems"][0]["kind"] == "failed"
        program = newcomer.terminals["examples.fastapi_app:app"]
        program.terminate()
        await until(lambda: not program.running, what="the application to end")
        said = program.log.read_text()
        assert said.count("has ended with RecordStopped: orders-") == 1
        assert "Application shutdown complete" in said


async def test_metrics(tmp_path: Path) -> None:
    """The figures are those of the handled orders; the probes say yes; the end is clean."""
    async with Newcomer("metrics", tmp_path) as newcomer:

        async def all_handled() -> bool:
            text = (await newcomer.get(newcomer.url("8000", "/metrics"))).text
            found = re.findall(r'aioparallel_records_ended_total\{.*outcome="succeeded".*\} (\S+)', text)
            return sum(map(float, found)) == 1_000

        await until(all_handled, what="all orders to be handled")
        for probe in ("/live", "/ready"):
            assert (await newcomer.get(newcomer.url("8000", probe))).status_code == 200
        await end(newcomer.terminals["metrics.py"], signal.SIGTERM)


async def test_aiohttp_app(tmp_path: Path) -> None:
    """Balances are right; the consumer of refunds dies and is started again, that of the orders goes on; the end is
    clean."""
    async with Newcomer("aiohttp_app", tmp_path) as newcomer:

        async def balance() -> int:
            answer = await newcomer.get(newcomer.url("8080", "/customers/customer-3"))
            return int(answer.json()["customer-3"])

        async def has(expected: int) -> bool:
            return await balance() == expected

        async def refunds() -> dict[str, object]:
            answer = await newcomer.get(newcomer.url("8080", "/health/live"))
            assert answer.status_code == 200
            return dict(answer.json()["consumers"]["refunds"])

        async def started_again() -> bool:
            found = await refunds()
            return bool(found["restarts"] and found["ready"])

        expected = sum_of(3, 1_000) - sum_of(3, 50)
        await until(lambda: has(expected), what=f"a balance of {expected}")
        assert await newcomer.answers(newcomer.url("8080", "/health/ready"))
        await newcomer.produce("refunds", b"no refund")
        await until(
            lambda: unfit(newcomer, newcomer.url("8080", "/health/ready")), what="the consumer of refunds to die"
        )
        await newcomer.produce("orders", b'{"customer": "customer-3", "amount": 5}')
        await until(lambda: has(expected + 5), what="one more order")
        await until(started_again, what="the consumer of refunds to run again")
        program = newcomer.terminals["aiohttp_app.py"]
        await end(program, signal.SIGTERM)
        said = program.log.read_text()
        assert said.count("ERROR aioparallel.consumer: The run of group balances-refunds has ended") >= 1
        assert said.count("ERROR") == said.count("is started again")


async def test_kmq(tmp_path: Path) -> None:
    """What hangs is done by the next delivery, what fails is put away after four, all else is done once; Ctrl-C ends it
    though a job hangs."""
    async with Newcomer("kmq/work", tmp_path) as newcomer:
        program = newcomer.terminals["work.py"]
        lines = Counter([(await program.line(DEADLINE)).strip() for _ in range(98 + 2 + 4)])
        assert lines["b'hangs' hangs, the 1. time"] == lines["b'hangs' is done, the 2. time"] == 1
        assert [lines[f"b'fails' fails, the {time}. time"] for time in range(1, 5)] == [1] * 4
        assert all(lines[f"b'job {number}' is done, the 1. time"] == 1 for number in range(98))
        (letter,) = await newcomer.read("jobs__undelivered", 1)
        assert letter.value == b"fails"
        await end(program, signal.SIGINT)


@pytest.mark.real
async def test_share(tmp_path: Path) -> None:
    """The slow job is the last one, what fails is put away after three deliveries, all else is done once; Ctrl-C ends
    it well."""
    async with Newcomer("share/work", tmp_path) as newcomer:
        program = newcomer.terminals["work.py"]
        lines = [(await program.line(DEADLINE)).strip() for _ in range(98 + 1 + 3)]
        assert lines[-1] == "b'slow' is done, delivery 1"
        assert [one for one in lines if "fails" in one] == [f"b'fails' fails, delivery {n}" for n in (1, 2, 3)]
        assert len({one for one in lines if one.endswith("is done, delivery 1")}) == 99
        (letter,) = await newcomer.read("jobs.dlq", 1)
        assert letter.value == b"fails"
        await end(program, signal.SIGINT)


async def test_priority(tmp_path: Path) -> None:
    """Resets go out while newsletters wait that were there long before; all are sent; Ctrl-C ends it well."""
    async with Newcomer("priority/mail", tmp_path) as newcomer:
        program = newcomer.terminals["mail.py"]
        lines = [(await program.line(DEADLINE)).split() for _ in range(10 + 20 + 2)]
        found = defaultdict(list)
        for name, *_, waited, _unit in lines:
            found[name].append(float(waited))
        assert len(found["reset"]) == 10
        assert max(found["newsletter"]) > 2 * max(found["reset"])
        await end(program, signal.SIGINT)


async def unfit(newcomer: Newcomer, url: str) -> bool:
    """Whether a probe says so."""
    return (await newcomer.get(url)).status_code == 503
