"""Words for messages."""

from __future__ import annotations

__all__ = ["kind_of"]


def kind_of(value: object) -> str:
    """The kind of a wrong value, for messages: ``an int``, ``a str``, ``the class ValueError``."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[:1] in tuple('aeioAEIO') else 'a'} {name}"
