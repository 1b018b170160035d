"""What tests use and is no test.

::

    waiting.py        until(): the one way to wait for a condition
    sharing.py        which tests run in one process, for what they share takes long to start
    garbage.py        collections of garbage beside thousands of tests
    virtual_time.py   an event loop whose time passes at once
    typing_uses.py    what type checkers are to accept and to refuse
    command_line.py   the command line, run inside this process
    newcomer.py       somebody who types what the comment of an example says
    examples.py       how many examples a property test runs
    kafka/            topics and groups on a real broker: filling, reading back, consuming
    children/         a consumer in a process of its own, and an account of what it did; that of an example
    copying/          a group that copies a topic while brokers and members die
    clusters/         the clusters behind the contract suite, and their members
    memory/           consumers and producers on the broker in memory
    engine/           the engine without Kafka; handlers
    model/            what the sync core should do, from the design's words
    interop/          the Java library's processes, and groups that it shares with us
    spark/            topics, handlers and programs for Spark
"""
