"""The error of an import that lacks a library of an extra."""

from __future__ import annotations

__all__ = ["missing_extra"]


def missing_extra(missing: ModuleNotFoundError, needs: str, extra: str) -> ModuleNotFoundError:
    """The error to raise ``from None``. ``needs``: who needs the module, with the verb. ``extra``: what installs it."""
    return ModuleNotFoundError(
        f"{needs} {missing.name}, which is not installed: pip install 'aioparallel[{extra}]'", name=missing.name
    )
