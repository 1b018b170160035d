"""A database that keeps positions and results in one transaction: what users import. How to: ``docs/stores.md``."""

from __future__ import annotations

from aioparallel.persistence.sql import Fenced, SqlStore, StoreNotReady, schema_statements

__all__ = ["Fenced", "SqlStore", "StoreNotReady", "schema_statements"]
