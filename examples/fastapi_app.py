"""A consumer inside a FastAPI application: it sums up orders, and the application tells the sums.

In a clone of the repository, in three terminals::

    pip install --editable '.[examples]'
    aioparallel broker --topic orders:8         # prints an `export` line: copy it into the other terminals
    uvicorn examples.fastapi_app:app --port 8000
    python examples/orders.py 1000
    curl localhost:8000/customers/customer-3    # its sum; also /health and /stats

The consumer starts and ends with the application. When it dies on the way, as it does when an order fails three times,
that is logged, and /health answers 503: an orchestrator that asks for it (Kubernetes: readinessProbe, or livenessProbe
to have it started again) knows.
"""

import asyncio
import json
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response

from aioparallel import ConsumerStateError, FailurePolicy, ParallelConsumer, Record, RetryPolicy

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")

log = logging.getLogger("uvicorn.error")
sums: Counter[str] = Counter()


async def add(record: Record) -> None:
    """Add one order to its customer's sum."""
    order = json.loads(record.value or b"{}")
    await asyncio.sleep(0.01)  # here stands what takes long: a call, a database
    sums[order["customer"]] += order["amount"]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The consumer's life."""
    app.state.consumer = consumer = ParallelConsumer(
        "orders",
        bootstrap_servers=SERVERS,
        group_id="sums",
        max_concurrency=100,
        failures=FailurePolicy(retry=RetryPolicy(max_attempts=3)),  # without a dead letter: then the run ends
    )
    async with consumer:  # a missing topic or broker ends the application here, with one clear error
        running = asyncio.create_task(consumer.run(add))
        running.add_done_callback(tell_the_end)
        yield
    # leaving the block has drained, committed and left the group


def tell_the_end(running: asyncio.Task[None]) -> None:
    """The end of a consumer that died is for the log; nobody awaits its task."""
    if not running.cancelled() and (error := running.exception()) is not None:
        log.critical("the consumer has ended, no orders are read any more", exc_info=error)


app = FastAPI(lifespan=lifespan)


@app.get("/customers/{name}")
async def customer(name: str) -> dict[str, int]:
    """The sum of a customer's orders."""
    return {name: sums[name]}


@app.get("/health")
async def health(request: Request, response: Response) -> dict[str, Any]:
    """200 while records are read; 503 otherwise. Problems are for people: they do not make this instance unfit."""
    found = request.app.state.consumer.health()
    response.status_code = 200 if found.running else 503
    return {"running": found.running, "problems": [problem.message for problem in found.problems]}


@app.get("/stats")
async def stats(request: Request) -> dict[str, Any]:
    """What the consumer has to do, and has done."""
    try:
        found = request.app.state.consumer.stats()
    except ConsumerStateError as error:
        raise HTTPException(503, str(error)) from error
    return {name: getattr(found, name) for name in ("lag", "in_flight", "buffered", "parked", "succeeded", "intake")}
