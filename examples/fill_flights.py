"""Writes real flights to topic flights, for batch_to_database.py: keyed by tail number, in the order of the year.

    python -m examples.fill_flights 20000       # at most 336776

The broker is that in the variable AIOPARALLEL_BOOTSTRAP_SERVERS, else localhost:9092. The embedded one keeps 5 MiB of
each partition: about 100,000 flights with eight of them.
"""

import asyncio
import os
import sys

from examples.flights_pipeline.filling import fill

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")
TOPIC = "flights"

if __name__ == "__main__":
    count = int(sys.argv[1] if sys.argv[1:] else sys.exit(__doc__))
    asyncio.run(fill(SERVERS, TOPIC, count, lambda done, _: print(f"{done:,} flights are on topic {TOPIC}")))
