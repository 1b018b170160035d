"""Shared test code.

::

    waiting.py        until(): the one way to wait for a condition
    sharing.py        which tests run in one process, because what they share takes long to start
    garbage.py        keeps garbage collections fast during thousands of tests
    virtual_time.py   an event loop whose time passes at once
    network.py        a network between a client and a server, which can become silent
    typing_uses.py    what type checkers must accept and refuse
    command_line.py   runs the command line inside this process
    newcomer.py       runs what the docstring of an example says
    examples.py       how many examples a property test runs
    extensions.py     contexts for extensions
    sql_stores.py     consumers with a SqlStore
    kafka/            topics and groups on a real broker: filling, reading back, consuming
    children/         consumers in separate processes, and an account of what they did
    copying/          a group that copies a topic while brokers and members die
    rebalances/       groups whose members come and go under a steady load, and their pauses
    members/          members in separate processes that are killed, frozen and replaced
    clusters/         the clusters behind the contract suite, and their members
    memory/           consumers and producers on the in-memory broker
    transactions/     seeded runs of transactional consumers
    engine/           the engine without Kafka; handlers
    model/            models of the sync core
    http/             services and raw servers
    interop/          the Java library's processes, and groups that it shares with us
    spark/            topics, handlers and programs for Spark
"""
