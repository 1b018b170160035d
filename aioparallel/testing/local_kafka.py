"""Apache Kafka for experiments, until Ctrl-C.

``python -m aioparallel.testing.local_kafka`` runs one broker, with ``--brokers 3`` three, with ``--port 9092`` on the
usual port. ``--user alice:wonderland`` adds listeners with TLS and logins, and prints options to copy. ``--prepare``
only fetches the jars and archives their classes, so that brokers start faster.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
from collections.abc import Sequence

from aioparallel.jvm.sets import KAFKA_VERSION
from aioparallel.records.errors import BrokerStartError, ConfigurationError, JarsMissing, JavaNotFound
from aioparallel.testing.brokers.class_archive import prepare
from aioparallel.testing.brokers.local import LocalKafka
from aioparallel.testing.brokers.secured import Secured

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare the jars, or run brokers until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m aioparallel.testing.local_kafka", description=(__doc__ or "").replace("``", "")
    )
    parser.add_argument(
        "--prepare", action="store_true", help="fetch the jars into the cache, archive their classes, and end"
    )
    parser.add_argument("--brokers", type=int, default=1, help="how many to run; default 1")
    parser.add_argument("--port", type=int, help="the first broker's port, the others follow; default: free ones")
    parser.add_argument("--user", action="append", default=[], metavar="NAME:PASSWORD", help="a user; repeatable")
    options = parser.parse_args(arguments)
    try:
        if options.prepare:
            print(f"Apache Kafka {KAFKA_VERSION} is in {prepare(print)}")
            return
        users = dict(_user(text) for text in options.user)
        secured = Secured(users) if users else None
        with (
            LocalKafka(brokers=options.brokers, port=options.port, secured=secured, report=print) as kafka,
            contextlib.suppress(KeyboardInterrupt),
        ):
            print(f"Apache Kafka {KAFKA_VERSION} runs at {kafka.bootstrap_servers} (Ctrl-C ends it)", flush=True)
            if secured is not None:
                print(_lines_to_copy(secured), flush=True)
            threading.Event().wait()
    except (BrokerStartError, ConfigurationError, JavaNotFound, JarsMissing) as error:
        parser.exit(1, f"{error}{os.linesep}")


def _user(text: str) -> tuple[str, str]:
    name, colon, password = text.partition(":")
    if not colon:
        raise ConfigurationError("user", name, "must be NAME:PASSWORD")
    return name, password


def _lines_to_copy(secured: Secured) -> str:
    """The options of the first user for each listener, for programs and for the command line."""
    user, password = next(iter(secured.users.items()))
    written = f"password={password!r}"  # the repr hides the password, which was typed here
    lines = [
        f"  {secured.bootstrap_servers(one)}  {repr(secured.security(one)).replace('password=<str>', written)}"
        for one in secured.listeners
    ]
    return "\n".join(
        [
            "For programs: the bootstrap servers, and security=...",
            *lines,
            "For `aioparallel dlq` in other terminals:",
            "",
            f"    export AIOPARALLEL_BOOTSTRAP_SERVERS={secured.bootstrap_servers()}",
            "    export AIOPARALLEL_SECURITY_PROTOCOL=SASL_SSL AIOPARALLEL_MECHANISM=SCRAM-SHA-512",
            f"    export AIOPARALLEL_CA_FILE={secured.authority.ca_file}",
            f"    export AIOPARALLEL_USERNAME={user} AIOPARALLEL_PASSWORD='{password}'",
            "",
        ]
    )


if __name__ == "__main__":
    main()
