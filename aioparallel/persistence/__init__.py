"""What is kept, and committed with the positions: states, what was seen, databases, Kafka's transactions.

::

    state/         a state of each key, in memory, with a topic as its home
    dedup/         what was seen: copies left out
    sql/           positions and results in one database transaction
    transactions/  positions and outputs in Kafka's transactions
"""
