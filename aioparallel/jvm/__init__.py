"""What Java programs need: a Java runtime, and jars fetched once with Maven.

::

    java_runtime.py  finding a Java that is new enough
    jars.py          a set of jars: fetched once, kept in the user's cache directory, checked at every use
    maven.py         one run of Maven that copies a set's jars into a directory
    sets.py          the sets there are: Apache Kafka's, and those of Spark's Kafka connector

``python -m aioparallel.jvm`` fetches a set and prints where it is.
"""
