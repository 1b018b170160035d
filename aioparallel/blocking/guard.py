"""A program that would start itself anew in each of its processes.

A spawned process imports the program's main module first, without running what stands below
``if __name__ == "__main__":``. Where nothing stands below it, the whole program would run again there.
"""

from __future__ import annotations

import sys

from aioparallel.errors import ConsumerStateError

__all__ = ["is_importing_main", "refuse_in_import_of_main"]


def is_importing_main() -> bool:
    """Whether this process was spawned and still imports the main module. Loads nothing."""
    module = sys.modules.get("multiprocessing.process")  # it is there in every process that was spawned
    return module is not None and getattr(module.current_process(), "_inheriting", False)


def refuse_in_import_of_main() -> None:
    """Raises ConsumerStateError where that is so: for whatever begins the work of a program."""
    if is_importing_main():
        raise ConsumerStateError(
            "this process was started by in_processes (or multiprocessing) and only imports the program's main "
            'module, which runs the program again: put what runs it below `if __name__ == "__main__":`'
        )
