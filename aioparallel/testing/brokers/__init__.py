"""Brokers to test with, each a process or a library of its own; none of them needs the others.

::

    broker.py             what each of them offers
    choice.py             the most real one that this machine can start
    embedded.py           librdkafka's mock cluster in this process         librdkafka.py   its functions
    docker.py             Apache Kafka's image
    local.py              Apache Kafka as JVM processes: LocalKafka
    kafka_nodes.py        its nodes together                                kafka_node.py   one of them
    server_properties.py  how they are configured
    secured.py            listeners with TLS and logins             certificates.py   made on the spot
    readiness.py          free ports, and whether a broker answers          cluster_view.py what it knows of its cluster
"""
