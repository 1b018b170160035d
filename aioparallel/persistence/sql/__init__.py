"""Commits positions and results in one database transaction, so each record's results are stored exactly once.

::

    store.py       SqlStore, the public class; runs handlers in an open transaction
    taking.py      takes over, reads, folds and releases the partitions of this member
    schema.py      the tables, and the statements that create them
    statements.py  the statements of each database
"""

from __future__ import annotations

from aioparallel.persistence.sql.doubt import Fenced
from aioparallel.persistence.sql.schema import StoreNotReady, schema_statements
from aioparallel.persistence.sql.store import SqlStore

__all__ = ["Fenced", "SqlStore", "StoreNotReady", "schema_statements"]
