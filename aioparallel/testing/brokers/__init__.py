"""Brokers for tests. Each is a separate process or library, and none needs the others.

::

    broker.py             the interface of all brokers
    choice.py             chooses the most realistic broker that this machine can run
    embedded.py           librdkafka's mock cluster in this process         librdkafka.py   its functions
    docker.py             Apache Kafka's image
    local.py              Apache Kafka as JVM processes: LocalKafka
    kafka_nodes.py        the nodes of a cluster                            kafka_node.py   one node
    class_archive.py      an archive of Kafka's classes, for faster starts
    server_properties.py  the configuration of brokers
    secured.py            listeners with TLS and logins                     certificates.py made on demand
    ports.py              free ports                                        cluster_view.py a broker's metadata
"""
