"""Two consumers inside one aiohttp application: orders are added to balances, refunds subtracted.

In a clone of the repository, in three terminals::

    pip install --editable '.[examples]'
    aioparallel broker --topic orders:8 --topic refunds:2
                                                # prints an `export` line: copy it into the other terminals
    python examples/aiohttp_app.py 8080         # until Ctrl-C; 8080 if left out
    python examples/orders.py 1000
    python examples/orders.py 50 refunds
    curl localhost:8080/customers/customer-3    # its balance; also /health

Both start and end with the application. When one dies, as that of the refunds does when a refund fails three times,
that is logged, and /health answers 503; the other one goes on.

Two consumers have options, groups and failures of their own. Where they could share those, one consumer reads both
topics, with a handler for each: ``ParallelConsumer(["orders", "refunds"], ...).run({"orders": f, "refunds": g})``.
"""

import asyncio
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import web

from aioparallel import FailurePolicy, ParallelConsumer, Record, RetryPolicy

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")

log = logging.getLogger("balances")
balances: Counter[str] = Counter()

CONSUMERS = web.AppKey("consumers", dict[str, ParallelConsumer])


async def add(sign: int, record: Record) -> None:
    """Add one order to its customer's balance, or subtract a refund."""
    order = json.loads(record.value or b"{}")
    await asyncio.sleep(0.01)  # here stands what takes long: a call, a database
    balances[order["customer"]] += sign * order["amount"]


def consuming(
    topic: str, handler: Callable[[Record], Awaitable[None]], **options: Any
) -> Callable[[web.Application], AsyncIterator[None]]:
    """A context of the application: a consumer that starts and ends with it."""

    async def context(app: web.Application) -> AsyncIterator[None]:
        consumer = ParallelConsumer(topic, bootstrap_servers=SERVERS, group_id=f"balances-{topic}", **options)
        async with consumer:  # a missing topic or broker ends the application here, with one clear error
            running = asyncio.create_task(consumer.run(handler), name=f"consumer of {topic}")
            running.add_done_callback(tell_the_end)
            app[CONSUMERS][topic] = consumer
            yield
        # leaving the block has drained, committed and left the group

    return context


def tell_the_end(running: asyncio.Task[None]) -> None:
    """The end of a consumer that died is for the log; nobody awaits its task."""
    if not running.cancelled() and (error := running.exception()) is not None:
        log.critical("the %s has ended", running.get_name(), exc_info=error)


async def customer(request: web.Request) -> web.Response:
    """The balance of a customer."""
    name = request.match_info["name"]
    return web.json_response({name: balances[name]})


async def health(request: web.Request) -> web.Response:
    """200 while both read; 503 when one of them does not. Problems are for people."""
    found = {topic: consumer.health() for topic, consumer in request.app[CONSUMERS].items()}
    body = {
        topic: {"running": one.running, "problems": [p.message for p in one.problems]} for topic, one in found.items()
    }
    return web.json_response(body, status=200 if all(one.running for one in found.values()) else 503)


def application() -> web.Application:
    """With both consumers."""
    app = web.Application()
    app[CONSUMERS] = {}
    app.router.add_get("/customers/{name}", customer)
    app.router.add_get("/health", health)
    app.cleanup_ctx.append(consuming("orders", partial(add, 1), max_concurrency=200))
    strict = FailurePolicy(retry=RetryPolicy(max_attempts=3))  # a refund that fails for good ends its consumer
    app.cleanup_ctx.append(consuming("refunds", partial(add, -1), max_concurrency=10, failures=strict))
    return app


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    web.run_app(application(), host="127.0.0.1", port=int(sys.argv[1] if sys.argv[1:] else 8080), access_log=None)
