"""The clusters behind the contract suite.

::

    cluster.py            what a cluster is to the tests, and what not every one can do
    memory_cluster.py     the broker in memory
    aiokafka_cluster.py   the embedded broker and Apache Kafka, through aiokafka
    strict_broker.py      an Apache Kafka that asks for logins and permissions
    member.py, sender.py  a client and a producer as the contract's tests drive them
    aiokafka_member.py    a client as the tests of aiokafka's own parts drive it
    protocols.py          whether these parts are as we describe them
"""
