"""Java for testing and Spark: finds a Java runtime, and fetches jars once with Maven.

::

    java_runtime.py  finds a Java runtime that is new enough
    jars.py          sets of jars: fetched once, kept in the user's cache directory, checked at each use
    maven.py         runs Maven to copy a set's jars into a directory
    sets.py          the known sets: Apache Kafka, Spark's Kafka connector

``python -m aioparallel.jvm`` fetches a set and prints its location.
"""
