"""Detects a program that would start again in each of its processes.

A spawned process imports the program's main module first, without the code below ``if __name__ == "__main__":``. If the
program runs outside of such a block, it would run again there.
"""

from __future__ import annotations

import sys

from aioparallel.records.errors import ConsumerStateError

__all__ = ["is_importing_main", "refuse_in_import_of_main"]


def is_importing_main() -> bool:
    """Whether this process was spawned and is importing the main module. Imports nothing."""
    module = sys.modules.get("multiprocessing.process")  # exists in each spawned process
    return module is not None and getattr(module.current_process(), "_inheriting", False)


def refuse_in_import_of_main() -> None:
    """Raise ConsumerStateError if :func:`is_importing_main`. Called by whatever starts the work of a program."""
    if is_importing_main():
        raise ConsumerStateError(
            "this process was started by in_processes (or multiprocessing) and only imports the program's main "
            'module, which runs the program again: put what runs it below `if __name__ == "__main__":`'
        )
