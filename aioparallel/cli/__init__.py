"""The ``aioparallel`` command. Needs the extra ``cli``; the benchmark and the broker have extras of their own.

::

    app.py             the commands and their exit codes
    console.py         printing, asking, checking for extras
    cluster.py         options to reach a cluster; security.py those of TLS and SASL
    parsing.py         values of options: NAME=VALUE, times
    formats.py         records as JSON
    reading_client.py  a client that reads topics and joins no group
    database.py        options to reach a database
    broker.py          a broker to try things out
    topics/            lists, describes, creates and deletes topics
    produce/           a record for each line
    consume/           shows records
    bench/             measures the consumer on the user's brokers
    groups/            the work that groups have left
    offsets/           changes the offsets of a group that is stopped
    dlq/               dead letters
    kmq/               queues with redelivery markers
    store/             tables for positions in a database
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

__all__ = ["INTERRUPTED", "main"]

INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count


def main() -> None:
    """The entry point of the command; imports nothing that an installation without extras lacks."""
    missing = [name for name in ("cyclopts", "rich") if find_spec(name) is None]
    if missing:
        sys.exit(
            f"aioparallel: the command line needs {' and '.join(missing)}, not installed here.\n"
            "    pip install 'aioparallel[cli]'     the command line\n"
            "    pip install 'aioparallel[bench]'   the command line and all that `aioparallel bench` needs\n"
            "    pip install 'aioparallel[testing]' what `aioparallel broker` needs besides"
        )
    try:
        from aioparallel.cli.app import main as run  # noqa: PLC0415 - after the check, and Ctrl-C may come meanwhile

        run()
    except KeyboardInterrupt:
        sys.stderr.write("Stopped.\n")
        sys.exit(INTERRUPTED)
