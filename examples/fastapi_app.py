"""A consumer inside a FastAPI application: it adds up orders, and the application serves the sums.

In a clone of the repository, in three terminals::

    pip install --editable '.[examples]'
    aioparallel broker --topic orders:8
    uvicorn examples.fastapi_app:app --port 8000
    python examples/orders.py 1000
    curl localhost:8000/customers/customer-3    # its sum; also /health/live, /health/ready and /stats

The consumer starts and stops with the application. When it fails, as it does when an order fails three times, this is
logged, and both probes answer 503: the livenessProbe of Kubernetes then restarts the application.
"""

import asyncio
import json
import os
from collections import Counter

from fastapi import FastAPI

from aioparallel import FailurePolicy, ParallelConsumer, Record, RetryPolicy
from aioparallel.web.fastapi import health_router, running

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")

sums: Counter[str] = Counter()


def make_consumer() -> ParallelConsumer:
    """A new consumer for each start."""
    return ParallelConsumer(
        "orders",
        bootstrap_servers=SERVERS,
        group_id="sums",
        max_concurrency=100,
        failures=FailurePolicy(retry=RetryPolicy(max_attempts=3)),  # without a dead letter: then the run ends
    )


async def add(record: Record) -> None:
    """Add one order to its customer's sum."""
    order = json.loads(record.value or b"{}")
    await asyncio.sleep(0.01)  # instead of slow work: a call, a database
    sums[order["customer"]] += order["amount"]


consumers = running(make_consumer, add)  # without topic or broker the application does not start, with one clear error
app = FastAPI(lifespan=consumers)
app.include_router(health_router(consumers))


@app.get("/customers/{name}")
async def customer(name: str) -> dict[str, int]:
    """The sum of a customer's orders."""
    return {name: sums[name]}
