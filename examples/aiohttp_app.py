"""Two consumers inside one aiohttp application: orders are added to balances, refunds subtracted.

In a clone of the repository, in three terminals::

    pip install --editable '.[examples]'
    aioparallel broker --topic orders:8 --topic refunds:2
    python examples/aiohttp_app.py 8080         # until Ctrl-C; 8080 if left out
    python examples/orders.py 1000
    python examples/orders.py 50 refunds
    curl localhost:8080/customers/customer-3    # its balance; also /health/live, /health/ready and /stats

Both start and stop with the application. When the refunds' consumer fails, as it does when a refund fails three times,
it is started again after growing delays; the other one goes on meanwhile, and /health/ready answers 503.

Two consumers have separate options, groups and failures. If they could share those, one consumer can read both topics,
with a handler for each: ``ParallelConsumer(["orders", "refunds"], ...)`` and ``{"orders": f, "refunds": g}``.
"""

import asyncio
import json
import logging
import os
import sys
from collections import Counter
from functools import partial

from aiohttp import web

from aioparallel import FailurePolicy, ParallelConsumer, Record, RetryPolicy
from aioparallel.web import ConsumerService, RestartPolicy
from aioparallel.web.aiohttp import health_routes, running

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")

balances: Counter[str] = Counter()


def orders_consumer() -> ParallelConsumer:
    """A new consumer for each start."""
    return ParallelConsumer("orders", bootstrap_servers=SERVERS, group_id="balances-orders", max_concurrency=200)


def refunds_consumer() -> ParallelConsumer:
    """A new consumer for each start. A refund that finally fails ends it."""
    strict = FailurePolicy(retry=RetryPolicy(max_attempts=3))
    return ParallelConsumer(
        "refunds",
        bootstrap_servers=SERVERS,
        group_id="balances-refunds",
        max_concurrency=10,
        failures=strict,
    )


async def add(sign: int, record: Record) -> None:
    """Add one order to its customer's balance, or subtract a refund."""
    order = json.loads(record.value or b"{}")
    await asyncio.sleep(0.01)  # instead of slow work: a call, a database
    balances[order["customer"]] += sign * order["amount"]


async def customer(request: web.Request) -> web.Response:
    """The balance of a customer."""
    name = request.match_info["name"]
    return web.json_response({name: balances[name]})


def application() -> web.Application:
    """The application with both consumers."""
    orders = ConsumerService(orders_consumer, partial(add, 1), name="orders")
    refunds = ConsumerService(refunds_consumer, partial(add, -1), name="refunds", restart=RestartPolicy())
    consumers = running(orders, refunds)
    app = web.Application()
    app.cleanup_ctx.append(consumers)
    app.add_routes(health_routes(consumers))
    app.router.add_get("/customers/{name}", customer)
    return app


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    web.run_app(application(), host="127.0.0.1", port=int(sys.argv[1] if sys.argv[1:] else 8080), access_log=None)
