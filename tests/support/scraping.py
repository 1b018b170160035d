"""Scrapes a registry, parsed by prometheus_client's own parser."""

from __future__ import annotations

import math
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from aioparallel.observe.metrics.prometheus import exposition

__all__ = ["Scraped", "parsed", "scrape"]


class Scraped:
    """The samples of one scrape."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.families = {family.name: family for family in families}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def sum(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name (without ``aioparallel_``) with these labels."""
        found = [
            sample.value
            for sample in self.samples
            if sample.name == f"aioparallel_{name}" and labels.items() <= sample.labels.items()
        ]
        assert found, f"there is no {name} with {labels}"
        return math.fsum(found)

    def values(self, name: str, label: str, **labels: str) -> set[str]:
        """The values of a label, of the samples with these other ones."""
        return {
            sample.labels[label]
            for sample in self.samples
            if sample.name == f"aioparallel_{name}" and labels.items() <= sample.labels.items()
        }


def parsed(text: bytes) -> Scraped:
    """A scrape in Prometheus's text format."""
    return Scraped(text_string_to_metric_families(text.decode()))


def scrape(registry: CollectorRegistry) -> Scraped:
    """Scrape in both formats; both must be valid and have the same samples, but for what came meanwhile."""
    text, kind = exposition("", registry)
    assert kind.startswith("text/plain")
    found = parsed(text)
    text, kind = exposition("application/openmetrics-text; version=1.0.0", registry)
    assert kind.startswith("application/openmetrics-text")
    other = Scraped(openmetrics.text_string_to_metric_families(text.decode()))  # type: ignore[no-untyped-call]
    assert {sample.name for sample in found.samples} <= {sample.name for sample in other.samples}
    return found
