"""Positions kept elsewhere than in Kafka, beside what handlers write there.

::

    sql/    a database: positions and results in one transaction
"""
