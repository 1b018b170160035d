"""Drives mutmut: it makes mutants, and runs the tests of those asked for. The one user of mutmut and its insides, so
its version is fixed in pyproject.toml.

``mutmut run`` itself knows no samples, and runs all tests of a room twice more each time it goes on. Everything here
happens in the room's folder, which is the working directory before this is imported: mutmut reads its settings then.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from mutmut import __main__ as mutmut
from mutmut.mutation.data import SourceFileMutationData
from mutmut.state import state
from mutmut.workers.isolation import get_mutant_runner

from .rooms import FAILED, KILLERS
from .scores import Verdict

__all__ = ["Mutations"]

_NOT_JUDGED = 255
"""What mutmut's workers end with where pytest could not be started."""

_BY_EXIT = {
    0: Verdict.SURVIVED,
    2: Verdict.NOT_JUDGED,
    4: Verdict.NOT_JUDGED,
    5: Verdict.NO_TEST,
    33: Verdict.NO_TEST,
    36: Verdict.TIMED_OUT,
    24: Verdict.TIMED_OUT,
    -24: Verdict.TIMED_OUT,
    -9: Verdict.TIMED_OUT,
    _NOT_JUDGED: Verdict.NOT_JUDGED,
}

_LIMIT = 30
"""Seconds that a mutant has in any case; and four times what its tests take otherwise."""


class Mutations:
    """The mutants of one room, with what is known of them."""

    def __init__(self, *, workers: int) -> None:
        # The tests of a mutant are a copy, and so is this package there.
        for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
            del sys.modules[name]
        mutmut.print_status = lambda *_, **__: None  # what turns round while tests run, in logs as well
        self._runner = get_mutant_runner(workers)
        self._files: dict[str, SourceFileMutationData] = {}  # by mutant
        self.files: list[str] = []

    def make(self, fingerprint: str) -> None:
        """Writes the mutants of code that has changed, and learns which tests run which function."""
        os.makedirs("mutants", exist_ok=True)
        with _quiet():
            mutmut.copy_src_dir()
            mutmut.copy_also_copy_files()
            mutmut.setup_source_paths()
            mutmut.create_mutants(self._runner.max_workers)
        seen = Path("tests.fingerprint")
        if not seen.exists() or seen.read_text() != fingerprint:
            Path("mutants/mutmut-stats.json").unlink(missing_ok=True)
        failed = Path("mutants", FAILED)
        failed.unlink(missing_ok=True)
        try:
            mutmut.collect_or_load_stats(self._runner, apply_config_invalidation=True)
        except SystemExit:
            if failed.exists():
                print("a test fails without any mutant:", failed.read_text(), sep="\n", file=sys.stderr)
            raise
        for path in mutmut.walk_mutatable_files():
            data = SourceFileMutationData(path=path)
            data.load()
            self.files.append(str(path))
            self._files.update(dict.fromkeys(data.exit_code_by_key, data))
        if not seen.exists() or seen.read_text() != fingerprint:
            self._forget_survivors()
            seen.write_text(fingerprint)

    def _forget_survivors(self) -> None:
        for data in set(self._files.values()):
            for name, code in data.exit_code_by_key.items():
                if code is not None and _verdict(code) not in {Verdict.KILLED, Verdict.TIMED_OUT}:
                    data.exit_code_by_key[name] = None
            data.save()

    def verdict(self, name: str) -> Verdict | None:
        """None for a mutant that was not tried since it changed, or survived and its tests have changed."""
        code = self._files[name].exit_code_by_key[name]
        return None if code is None else _verdict(code)

    def killers(self) -> dict[str, str]:
        """The test that killed it, by name of the mutant."""
        path = Path("mutants", KILLERS)
        lines = path.read_text().splitlines() if path.exists() else []
        return dict(line.split("\t", 1) for line in lines)

    def run(self, names: list[str]) -> Iterator[str]:
        """Gives each name when its verdict is there: begun in their order, so what is done of a sample is one itself.
        Closing it ends what runs."""
        tests_of, seconds = state().tests_by_mangled_function_name, state().duration_by_test
        tests = {name: sorted(tests_of.get(name.partition("__mutmut_")[0], ())) for name in names}
        times = {name: sum(seconds[test] for test in tests[name]) for name in names}
        self._runner.startup()
        try:
            for name in names:
                while not self._runner.has_capacity():
                    yield self._take()
                self._runner.submit(name, tests[name], int(2 * (_LIMIT + 4 * times[name])), times[name])
            self._runner.signal_work_complete()
            while self._runner.pending_count():
                yield self._take()
        finally:
            self._runner.stop_all_workers()
            self._runner.shutdown()

    def _take(self) -> str:
        result = self._runner.wait_for_result()
        data = self._files[result.mutant_name]
        data.exit_code_by_key[result.mutant_name] = result.exit_code
        data.save()
        return str(result.mutant_name)


def _verdict(code: int) -> Verdict:
    return _BY_EXIT.get(code, Verdict.KILLED)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()):
        yield
