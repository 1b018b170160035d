"""A database that keeps positions and results in one transaction: what users import. How to: ``docs/stores.md``."""

from __future__ import annotations

from aioparallel.records.missing_extra import missing_extra

try:
    from aioparallel.persistence.sql import Fenced, SqlStore, StoreNotReady, schema_statements
except ModuleNotFoundError as missing:
    raise missing_extra(missing, "aioparallel.stores.sql needs", "sql") from None

__all__ = ["Fenced", "SqlStore", "StoreNotReady", "schema_statements"]
