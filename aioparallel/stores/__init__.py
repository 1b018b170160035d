"""Where positions are kept elsewhere than in Kafka: what users import.

::

    sql.py  a database: positions and results in one transaction
"""
