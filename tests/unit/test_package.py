"""What ``import aioparallel`` offers."""

from __future__ import annotations

import importlib.metadata

import aioparallel
from aioparallel.records import errors


def test_every_error_can_be_imported_from_the_top() -> None:
    """The same classes, and part of ``__all__``."""
    for name in errors.__all__:
        assert getattr(aioparallel, name) is getattr(errors, name)
        assert name in aioparallel.__all__


def test_all_names_what_is_there() -> None:
    """Each once."""
    assert len(set(aioparallel.__all__)) == len(aioparallel.__all__)
    assert all(hasattr(aioparallel, name) for name in aioparallel.__all__)


def test_the_version_is_that_of_the_installed_package() -> None:
    """One number, kept in the package."""
    assert aioparallel.__version__ == importlib.metadata.version("aioparallel")
