"""Writes the TypedDicts for ``**options: Unpack[...]`` (PEP 692) from the dataclasses that list the options.

Type checkers cannot derive a TypedDict from a dataclass. So its source is written, between two comments below the
dataclass. ``make docs`` writes it, and ``tests/docs/test_reference.py`` fails when one is not up to date.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from aioparallel.config.option_docs import Option, options_of
from aioparallel.config.options import Options
from aioparallel.http.handler import HttpHandler, http_handler

__all__ = ["modules", "write"]

_BEGIN = "# -- Written by `make docs` from the dataclass above: do not edit ---------------------------------------"
_END = "# -- Written by hand again ------------------------------------------------------------------------------"
_DESERIALIZERS = ("key_deserializer", "value_deserializer")
_OWN_PARAMETERS = ("request", "on_response")


def modules() -> Iterator[tuple[Path, str]]:
    """Each module with such TypedDicts, and its text."""
    options = {one.name: one for one in options_of(Options)}
    yield _module(
        Options,
        _typed_dict(
            "PlainFields(TypedDict, total=False)",
            "The fields of Options that do not change the type of a record's key or value.",
            [one for name, one in options.items() if name not in _DESERIALIZERS],
        ),
        _typed_dict(
            "OptionFields(PlainFields, total=False)",
            "The fields of Options.",
            [options[name] for name in _DESERIALIZERS],
        ),
    )
    of_http = [one for one in options_of(HttpHandler, http_handler) if one.name not in _OWN_PARAMETERS]
    yield _module(
        HttpHandler, _typed_dict("HttpFields(TypedDict, total=False)", "The keywords of http_handler.", of_http)
    )


def _typed_dict(head: str, docstring: str, fields: list[Option]) -> str:
    return f'class {head}:\n    """{docstring}"""\n\n' + "".join(f"    {one.name}: {one.type}\n" for one in fields)


def _module(kind: type, *typed_dicts: str) -> tuple[Path, str]:
    path = Path(inspect.getfile(kind))
    above, _, rest = path.read_text().partition(_BEGIN)
    _, found, below = rest.partition(_END)
    assert found, path
    return path, f"{above}{_BEGIN}\n\n\n" + "\n\n".join(typed_dicts) + f"\n\n{_END}{below}"


def write() -> None:
    """Write each module."""
    for path, text in modules():
        path.write_text(text)
