"""Our messages in the JSON of Kafka's converters (``kafka-dump-log``, ``ShareFetchRequestDataJsonConverter``)."""

from __future__ import annotations

import base64
import dataclasses
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from aioparallel.clients.messages.schema import Records, Since, Uuid

__all__ = ["as_json", "kinds"]


def kinds(cls: type[object], version: int) -> dict[str, object]:
    """The annotations of the fields that this version has, without the marks of versions."""
    found = {}
    for name, hint in get_type_hints(cls, include_extras=True).items():
        plain, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        since = next((mark.version for mark in marks if isinstance(mark, Since)), 0)
        if since <= version:
            rest = tuple(mark for mark in marks if not isinstance(mark, Since))
            found[name] = Annotated[(plain, *rest)] if rest else plain
    return found


def as_json(message: object, version: int) -> Any:
    """The message as Kafka writes it, with its records as bytes in base64."""
    found = {}
    for name, kind in kinds(type(message), version).items():
        words = name.split("_")
        key = words[0] + "".join(word.title() for word in words[1:])
        found[key] = _value(getattr(message, name), kind, version)
    return found


def _value(value: object, kind: object, version: int) -> Any:
    if isinstance(value, tuple):
        return [_value(one, None, version) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_json(value, version)
    if isinstance(value, bytes):
        if kind == Uuid:
            return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
        assert kind == Records
        return base64.b64encode(value).decode()
    return value
