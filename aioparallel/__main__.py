"""``python -m aioparallel``: the command, where its script is not on the path."""

from aioparallel.cli import main

if __name__ == "__main__":
    main()
