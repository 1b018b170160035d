"""Blocks of figures in README.md and docs, between two marks, filled from ``results/``.

A block has each mark on a line of its own; NAME is one of ``BLOCKS``::

    <!-- figures: NAME -->
    ...
    <!-- end of figures -->
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from aioparallel.records.errors import AioparallelError

__all__ = ["RESULTS", "ROOT", "differences", "pages", "without_blocks", "write"]

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = Path(__file__).with_name("results")

_BLOCK: Final = re.compile(
    r"^<!-- figures: (?P<name>\S+) -->\n(?P<body>(?:(?!<!-- figures:).)*?)^<!-- end of figures -->$", re.M | re.S
)
_MARK: Final = re.compile(r"<!--\s*(?:figures|end\s+of\s+figures)\b.*", re.I)


def pages(root: Path) -> list[Path]:
    """All pages that may have blocks."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def without_blocks(text: str) -> str:
    """A page without its generated blocks."""
    return _BLOCK.sub("", text)


def write(figures: Mapping[str, str], root: Path) -> list[Path]:
    """Fill all blocks of all pages. Returns the pages that changed.

    Raises AioparallelError, before anything is written, if a block has an unknown name or no end.
    """
    texts = {page: page.read_text() for page in pages(root)}
    wrong = [problem for page, text in texts.items() for problem in _problems(page.relative_to(root), text, figures)]
    if wrong:
        raise AioparallelError("; ".join(wrong))
    filled = {page: _BLOCK.sub(lambda found: _block(found["name"], figures), text) for page, text in texts.items()}
    changed = [page for page, text in filled.items() if text != texts[page]]
    for page in changed:
        page.write_text(filled[page])
    return changed


def differences(figures: Mapping[str, str], root: Path) -> list[str]:
    """Blocks that differ from the results or cannot be filled, with their pages."""
    found: list[str] = []
    for page in pages(root):
        text, name = page.read_text(), page.relative_to(root)
        found += _problems(name, text, figures)
        found += [
            f"{name}: block {block['name']} is not what the results say"
            for block in _BLOCK.finditer(text)
            if block["name"] in figures and block[0] != _block(block["name"], figures)
        ]
    return found


def _block(name: str, figures: Mapping[str, str]) -> str:
    return f"<!-- figures: {name} -->\n\n{figures[name].strip()}\n\n<!-- end of figures -->"


def _problems(page: Path, text: str, figures: Mapping[str, str]) -> Iterator[str]:
    for block in _BLOCK.finditer(text):
        if block["name"] not in figures:
            yield f"{page}: block {block['name']} is unknown; there are {', '.join(figures)}"
    for mark in _MARK.findall(without_blocks(text)):
        yield f"{page}: {mark} has no other mark; a block begins and ends with one, each on a line of its own"
