"""Extensions that save data with the positions of records.

::

    state/              a value for each key, kept in memory and in topics
    dedup/              leaves out copies of records
    sql/                positions and results in one database transaction
    transactions/       positions and outputs in one Kafka transaction
    compacted_topic.py  the topics of state and dedup
"""
