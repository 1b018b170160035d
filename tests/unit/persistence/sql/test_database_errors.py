"""What is said of a database's error."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import OperationalError

from aioparallel.persistence.sql.database_errors import describe
from aioparallel.persistence.sql.schema import Schema
from aioparallel.records.errors import ConfigurationError


def test_an_error_is_told_without_statement_and_values() -> None:
    """SQLAlchemy's own text has both."""
    error = OperationalError("INSERT INTO results VALUES (:secret)", {"secret": "1234"}, OSError("no space\nleft"))
    assert describe(error) == "OperationalError: no space"


def test_an_error_without_a_text_is_no_answer() -> None:
    """As a time-out has none."""
    assert describe(TimeoutError()) == "TimeoutError: no answer in time"


@pytest.mark.parametrize("name", ["", "a:b"])
def test_what_is_no_schema_is_refused(name: str) -> None:
    """Before anything is asked of the database."""
    with pytest.raises(ConfigurationError, match="schema"):
        Schema("p_", name)


@pytest.mark.parametrize("name", [None, "orders"])
def test_tables_are_in_their_schema(name: str | None) -> None:
    """None: that of the connection."""
    assert {table.schema for table in Schema("p_", name).metadata.sorted_tables} == {name}
