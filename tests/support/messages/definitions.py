"""Random messages as Kafka's own definitions allow them: the JSON files in the jar of its clients."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple
from zipfile import ZipFile

__all__ = ["Definition", "definitions", "random_json"]

_COMMENT: Final = re.compile(r"^\s*//.*$", re.MULTILINE)
_SIZES: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_TEXTS: Final = ("", "a", "topic-1", "größe", "日本語", "😀 and more", "with \u0000 zero")
_LONG: Final = ("x" * 126, "y" * 127, "z" * 300)
"""Around the size that takes two bytes."""
_OTHERS: Final[dict[str, Callable[[Random], Any]]] = {
    "bool": lambda random: random.random() < 0.5,
    "string": lambda random: random.choice(_TEXTS if random.random() < 0.97 else _LONG),
    "uuid": lambda random: base64.urlsafe_b64encode(random.randbytes(16)).rstrip(b"=").decode(),
    "records": lambda random: base64.b64encode(random.randbytes(random.choice((0, 1, 61, 200)))).decode(),
}


class Definition(NamedTuple):
    """A request or a response. ``least``: the first flexible version."""

    name: str
    least: int
    most: int
    fields: list[dict[str, Any]]
    structures: dict[str, list[dict[str, Any]]]
    """Structures that several fields have, by name."""


def definitions(jar: Path, names: list[str]) -> dict[str, Definition]:
    """The definitions of these messages, such as ``ShareFetchRequest``, as far as there are any."""
    found = {}
    with ZipFile(jar) as archive:
        for name in names:
            if f"common/message/{name}.json" not in archive.namelist():
                continue
            text = archive.read(f"common/message/{name}.json").decode()
            raw = json.loads(_COMMENT.sub("", text))
            least, most = _range(raw["validVersions"])
            least = max(least, _range(raw["flexibleVersions"])[0])
            common = {one["name"]: one["fields"] for one in raw.get("commonStructs", ())}
            found[name] = Definition(name, least, most, raw["fields"], common)
    return found


def random_json(definition: Definition, version: int, random: Random, longest: int = 4) -> Any:
    """A message of this version. ``longest``: the most items of an array."""
    return _structure(definition.fields, definition, version, random, longest)


def _structure(
    fields: list[dict[str, Any]], definition: Definition, version: int, random: Random, longest: int
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields:
        if not _has(field["versions"], version):
            continue
        assert "tag" not in field, "no message here has tagged fields of its own"
        name = field["name"][0].lower() + field["name"][1:]
        if _has(field.get("nullableVersions"), version) and random.random() < 0.3:
            found[name] = None
        else:
            found[name] = _value(field["type"], field, definition, version, random, longest)
    return found


def _value(kind: str, field: dict[str, Any], definition: Definition, version: int, random: Random, longest: int) -> Any:
    if kind.startswith("[]"):
        count = random.choice((0, 1, longest))
        return [_value(kind[2:], field, definition, version, random, longest) for _ in range(count)]
    if kind in _SIZES:
        edge = 2 ** (_SIZES[kind] - 1)
        return random.choice((0, 1, -1, edge - 1, -edge, random.randrange(-edge, edge)))
    if kind in _OTHERS:
        return _OTHERS[kind](random)
    fields = field.get("fields") or definition.structures[kind]
    return _structure(fields, definition, version, random, longest)


def _has(versions: str | None, version: int) -> bool:
    if versions is None or versions == "none":
        return False
    least, most = _range(versions)
    return least <= version <= most


def _range(versions: str) -> tuple[int, int]:
    if versions.endswith("+"):
        return int(versions[:-1]), 2**15
    least, _, most = versions.partition("-")
    return int(least), int(most or least)
