"""The options of ParallelConsumer are one list: a command line made of nothing but it has all it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest
from cyclopts import App, Parameter
from cyclopts.argument import Argument
from cyclopts.config import Env, Toml

from aioparallel.cli.console import as_typed
from aioparallel.config.handling import Ordering
from aioparallel.config.options import Options
from aioparallel.records.errors import ConfigurationError


def command(*config: Env | Toml) -> App:
    """A command that takes the options and gives them back."""
    app = App(config=config, default_parameter=Parameter(negative=()), result_action="return_value")

    @app.default
    def run(*, options: Annotated[Options, Parameter(name="*")] = Options()) -> Options:
        return options

    return app


def leaves(app: App) -> Iterator[Argument]:
    """The options that take a value themselves: not those that are policies."""
    return (one for one in app.assemble_argument_collection(parse_docstring=True) if not one.children)


def test_every_option_has_help() -> None:
    """Its docstring, also those of the policies inside."""
    without = [one.name for one in leaves(command()) if not (one.parameter.help or "").strip()]
    assert without == []
    assert len(list(leaves(command()))) > 30


def test_flags_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags, then variables, then a TOML file, then the default; choices and policies too."""
    file = tmp_path / "consumer.toml"
    file.write_text('commit_after = 5\nmax_concurrency = 5\nordering = "unordered"\n[failures]\ngive_up = "skip"\n')
    monkeypatch.setenv("AIOPARALLEL_COMMIT_INTERVAL", "2.5")
    monkeypatch.setenv("AIOPARALLEL_MAX_CONCURRENCY", "6")
    app = command(Env("AIOPARALLEL_", command=False), Toml(file, use_commands_as_keys=False))
    given: Options = app(["--ordering", "partition", "--failures.retry.max-attempts", "3"], exit_on_error=False)
    assert (given.ordering, given.max_concurrency, given.commit_interval) == (Ordering.PARTITION, 6, 2.5)
    assert (given.commit_after, given.commit_timeout) == (5, Options().commit_timeout)
    assert given.failures.retry_budget.end == "skip"
    assert getattr(given.failures.retry, "max_attempts", None) == 3


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            ["--heartbeat-interval", "20"],
            "--heartbeat-interval=20.0: must be at most a third of --session-timeout (30 s), or one lost heartbeat "
            "ends the session",
        ),
        (["--failures.retry.jitter", "3"], "--failures.retry.jitter=3.0: must be from 0 to 1"),
        (["--deduplicate.topic", " "], "--deduplicate.topic=' ': must be the name of a compacted topic"),
    ],
)
def test_a_wrong_option_is_named_as_it_was_typed(typed: list[str], said: str) -> None:
    """What the library says of its options is said of the flags."""
    app = command()
    with pytest.raises(ConfigurationError) as raised:
        app(typed, exit_on_error=False, print_error=False)
    assert as_typed(raised.value, {one.field_info.name: one.name for one in app.assemble_argument_collection()}) == said
