"""Fetch jars once with Maven into the cache, and print their paths.

  python -m aioparallel.jvm            the jars of Spark's Kafka connector, separated by commas
  python -m aioparallel.jvm kafka -d   the directory with the jars of Apache Kafka, for aioparallel.testing

Progress goes to standard error, so the output can be used in a command:

  spark-submit --jars "$(python -m aioparallel.jvm)" job.py
  spark-pipelines run --jars "$(python -m aioparallel.jvm)"

In Python: aioparallel.spark.connector_jars.kafka_jars().
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from aioparallel.jvm.sets import JAR_SETS
from aioparallel.records.errors import JarsMissing, JavaNotFound

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Fetch a set and print its jars or its directory. Exits with code 1 and a message if that fails."""
    parser = argparse.ArgumentParser(
        prog="python -m aioparallel.jvm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", nargs="?", choices=sorted(JAR_SETS), default="spark", help="which jars; default spark")
    parser.add_argument("-d", "--directory", action="store_true", help="print the directory, not the list of jars")
    options = parser.parse_args(arguments)
    jar_set = JAR_SETS[options.set]
    try:
        directory = jar_set.fetch(lambda sentence: print(sentence, file=sys.stderr, flush=True))
    except (JarsMissing, JavaNotFound) as error:
        parser.exit(1, f"{error}\n")
    jars = ",".join(str(jar) for jar in sorted(directory.glob("*.jar")))
    print(directory if options.directory else jars)


if __name__ == "__main__":
    main()
