"""Apache Kafka for people who try things out, until Ctrl-C.

``python -m aioparallel.testing.local_kafka`` runs a broker, with ``--brokers 3`` three, with ``--port 9092`` where
other programs look for one; ``--prepare`` only fetches the jars.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
from collections.abc import Sequence

from aioparallel.errors import BrokerStartError, ConfigurationError, JarsMissing, JavaNotFound
from aioparallel.jvm.sets import KAFKA, KAFKA_VERSION
from aioparallel.testing.brokers.local import LocalKafka

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare the jars, or run brokers until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m aioparallel.testing.local_kafka", description=(__doc__ or "").replace("``", "")
    )
    parser.add_argument("--prepare", action="store_true", help="fetch the jars into the cache, and end")
    parser.add_argument("--brokers", type=int, default=1, help="how many to run; default 1")
    parser.add_argument("--port", type=int, help="where the first listens, the others behind it; default: free ones")
    options = parser.parse_args(arguments)
    try:
        if options.prepare:
            print(f"Apache Kafka {KAFKA_VERSION} is in {KAFKA.fetch(print)}")
            return
        with (
            LocalKafka(brokers=options.brokers, port=options.port, report=print) as kafka,
            contextlib.suppress(KeyboardInterrupt),
        ):
            print(f"Apache Kafka {KAFKA_VERSION} runs at {kafka.bootstrap_servers} (Ctrl-C ends it)", flush=True)
            threading.Event().wait()
    except (BrokerStartError, ConfigurationError, JavaNotFound, JarsMissing) as error:
        parser.exit(1, f"{error}{os.linesep}")


if __name__ == "__main__":
    main()
