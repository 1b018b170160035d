"""A database that keeps positions and results in one transaction: what users import. How to: ``docs/stores.md``."""

from __future__ import annotations

try:
    from aioparallel.persistence.sql import Fenced, SqlStore, StoreNotReady, schema_statements
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"aioparallel.stores.sql needs {missing.name}, which is not installed: pip install 'aioparallel[sql]'",
        name=missing.name,
    ) from None

__all__ = ["Fenced", "SqlStore", "StoreNotReady", "schema_statements"]
