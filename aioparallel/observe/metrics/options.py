"""Checks the options of exporters."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from aioparallel.observe.metrics.instruments import INSTRUMENTS
from aioparallel.records.errors import ConfigurationError

__all__ = ["checked_bounds", "checked_labels", "checked_text"]

_LABEL: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*")
_ATTRIBUTE: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_.]*")


def checked_text(name: str, given: object) -> str:
    """A text, perhaps empty."""
    if not isinstance(given, str):
        raise ConfigurationError(name, given, "must be a text")
    return given


def checked_labels(
    given: object, own: Collection[str], option: str = "labels", *, dotted: bool = False
) -> dict[str, str]:
    """Labels and their values. ``own``: names that are taken. ``dotted``: names may have dots."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(option, given, "must be a mapping of names to texts")
    allowed, of = (_ATTRIBUTE, "letters, digits, _ and .") if dotted else (_LABEL, "letters, digits and _")
    for name, value in given.items():
        if not isinstance(name, str) or not allowed.fullmatch(name) or not isinstance(value, str):
            raise ConfigurationError(option, given, f"has {name!r}: {value!r}; names are texts of {of}, values texts")
        if name in own:
            raise ConfigurationError(option, given, f"has {name!r}, which is a label of the metrics themselves")
    return dict(given)


def checked_bounds(given: Mapping[str, Iterable[float]] | None) -> dict[str, tuple[float, ...]]:
    """The bounds of all histograms, by the names of their instruments."""
    bounds = {instrument.name: instrument.bounds for instrument in INSTRUMENTS if instrument.bounds}
    if given is not None and not isinstance(given, Mapping):
        raise ConfigurationError("buckets", given, f"must be a mapping; its keys may be {', '.join(bounds)}")
    for name, wanted in (given or {}).items():
        if name not in bounds:
            raise ConfigurationError("buckets", name, f"must be the name of a histogram: {', '.join(bounds)}")
        bounds[name] = _ascending(name, wanted)
    return bounds


def _ascending(name: str, wanted: Iterable[float]) -> tuple[float, ...]:
    try:
        found = tuple(map(float, wanted))
    except (TypeError, ValueError):
        raise ConfigurationError("buckets", wanted, f"must have numbers for {name}") from None
    if found and math.isinf(found[-1]):
        found = found[:-1]  # there is always one
    if not found or not all(map(math.isfinite, found)) or list(found) != sorted(set(found)):
        raise ConfigurationError("buckets", wanted, f"must have ascending numbers for {name}")
    return found
