"""An HTTP service that knows customers and is as unreliable as real ones, for enrich_http.py.

    python examples/customers.py 8081           # on http://127.0.0.1:8081

Customers whose number ends with 7 are unknown: 404. Of the other responses one in ten is a 429 (wait a second), one in
thirty a 503 with a date, and one in forty a 500.
"""

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import count

from aiohttp import web

asked = count(1)


async def customer(request: web.Request) -> web.Response:
    """One customer, after 20 ms."""
    name, number = request.match_info["name"], next(asked)
    await asyncio.sleep(0.02)
    if name.endswith("7"):
        return web.Response(status=404, text=f"no customer {name}")
    if number % 10 == 0:
        return web.Response(status=429, headers={"Retry-After": "1"})
    if number % 30 == 1:
        back = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
        return web.Response(status=503, headers={"Retry-After": back})
    if number % 40 == 5:
        return web.Response(status=500, text="a bug")
    return web.json_response({"name": name, "city": ("Turin", "Lyon", "Bergen")[len(name) % 3]})


def main(port: int) -> None:
    """Serve until Ctrl-C."""
    app = web.Application()
    app.router.add_get("/customers/{name}", customer)
    web.run_app(app, host="127.0.0.1", port=port, access_log=None)


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    main(int(sys.argv[1]))
