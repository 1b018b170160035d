"""What the benchmark was asked to do, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aioparallel.cli.bench.cases import CaseSpec, contest_cases
from aioparallel.cli.bench.contestants import builtin_contestants
from aioparallel.cli.bench.measures import OURS
from aioparallel.errors import ConfigurationError

__all__ = ["MEASURED", "Settings"]

CONTESTS: Final = "abcde"
MEASURED: Final = "fghi"
ALL_GROUPS: Final = CONTESTS + MEASURED
ROUNDS: Final = 5
QUICK_ROUNDS: Final = 1
QUICK_SCALE: Final = 20
MOST_ROUNDS: Final = 100
OUTPUT: Final = Path("benchmarks", "results")


@dataclass(frozen=True, slots=True)
class Settings:
    """The command's options as they were typed; None is what was not.

    Raises ConfigurationError, which names the option.
    """

    cases: str = ALL_GROUPS
    asked_rounds: int | None = None
    quick: bool = False
    asked_peers: bool | None = None
    only: tuple[str, ...] = ()
    bootstrap_servers: str | None = None
    asked_output: Path | None = None
    seed: int = 2013

    def __post_init__(self) -> None:
        wrong = "".join(sorted(set(self.cases) - set(ALL_GROUPS)))
        if wrong or not self.cases:
            raise ConfigurationError("--cases", self.cases, f"must be letters of {ALL_GROUPS}, as in --cases abc")
        if not 1 <= self.rounds <= MOST_ROUNDS:
            raise ConfigurationError("--rounds", self.rounds, f"must be from 1 to {MOST_ROUNDS}")
        if self.seed < 0:
            raise ConfigurationError("--seed", self.seed, "must not be negative")
        known = {name for spec in contest_cases(CONTESTS) for name in spec.contestants}
        for name in self.only:
            if name not in known:
                raise ConfigurationError("--only", name, f"must be one of {', '.join(sorted(known))}")
            if self.asked_peers is False and name not in builtin_contestants():
                raise ConfigurationError("--only", name, "is a peer outside this package; leave --no-peers away")
        if not self.specs and not self.measured:
            raise ConfigurationError(
                "--only", ", ".join(self.only), f"takes part in none of the cases {self.cases}; choose others"
            )

    @property
    def rounds(self) -> int:
        """Warm ones."""
        if self.asked_rounds is not None:
            return self.asked_rounds
        return QUICK_ROUNDS if self.quick else ROUNDS

    @property
    def scale(self) -> int:
        """By what record counts are divided."""
        return QUICK_SCALE if self.quick else 1

    @property
    def embedded(self) -> bool:
        """Whether the embedded broker serves. Java's consumer gets no records from it."""
        java = any(name.startswith("java") for name in self.peers)
        return self.quick and self.bootstrap_servers is None and not java

    @property
    def output(self) -> Path:
        """Where results go; those of a quick run beside the real ones, which they would replace."""
        if self.asked_output is not None:
            return self.asked_output
        return OUTPUT / "quick" if self.quick else OUTPUT

    @property
    def specs(self) -> list[CaseSpec]:
        """The contests that somebody takes part in."""
        found = contest_cases(self.cases, self.scale)
        return [spec for spec in found if any(self.takes_part(name) for name in spec.contestants)]

    @property
    def measured(self) -> str:
        """The letters of the measurements that are no contest. They are about ours."""
        return "".join(letter for letter in MEASURED if letter in self.cases and self.takes_part(OURS))

    def takes_part(self, name: str) -> bool:
        """Whether this contestant was asked for."""
        if self.only:
            return name in self.only
        with_peers = not self.quick if self.asked_peers is None else self.asked_peers
        return with_peers or name in builtin_contestants()

    @property
    def peers(self) -> list[str]:
        """The contestants outside this package that are needed."""
        names = dict.fromkeys(name for spec in self.specs for name in spec.contestants)
        return [name for name in names if self.takes_part(name) and name not in builtin_contestants()]
