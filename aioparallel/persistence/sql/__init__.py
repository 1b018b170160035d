"""Positions and results in one database transaction: each record's results stand there once.

::

    store.py       SqlStore: what users make; handlers with an open transaction
    taking.py      partitions of this member: taken over, read, folded, released
    schema.py      the tables, and how they are made
    statements.py  what is asked of the database, for each kind of it
"""

from __future__ import annotations

from aioparallel.persistence.sql.doubt import Fenced
from aioparallel.persistence.sql.schema import StoreNotReady, schema_statements
from aioparallel.persistence.sql.store import SqlStore

__all__ = ["Fenced", "SqlStore", "StoreNotReady", "schema_statements"]
