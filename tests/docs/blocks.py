"""The examples of the documentation: Python blocks of its pages, and of docstrings."""

from __future__ import annotations

import ast
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["ROOT", "Block", "blocks", "pages"]

ROOT = Path(__file__).parents[2]
_HEADING = re.compile(r"^#+ (?P<heading>.+)$", re.MULTILINE)
_FENCED = re.compile(r"^(?P<lead>[> ]*)```python\n(?P<code>.*?)^(?P=lead)```$", re.MULTILINE | re.DOTALL)
_LITERAL = re.compile(r"::\n\n(?P<code>(?:    .*\n|\n)+)")
_LOOKS_LIKE_CODE = re.compile(r"^(?:(?:from|import|async|await|with|assert|def|class) |@|\w+ = |\w+\()", re.MULTILINE)


class Block(NamedTuple):
    """A block as it stands there."""

    name: str
    """The page and the heading above it, ``README.md: A first program``, or the name of what has the docstring. The
    second one below a heading is ``... 2``."""
    page: str
    code: str
    text: str = ""
    """The text of its section, without blocks. Empty for docstrings."""

    @property
    def wants_spark(self) -> bool:
        """Whether it wants a session of Spark, or shows what is made for one."""
        return "spark" in self.page or "spark" in self.code

    @property
    def runs_elsewhere(self) -> bool:
        """Whether another test runs it."""
        return self.wants_spark or self.page == "docs/tutorial.md"


def pages() -> Iterator[Path]:
    """Every page in Markdown that a user reads."""
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))
    yield from sorted((ROOT / "docs").rglob("*.md"))


@cache
def blocks() -> Sequence[Block]:
    """All of them. Several modules ask while they are imported."""
    found = [*(one for page in pages() for one in _on_page(page))]
    found += [one for file in sorted((ROOT / "aioparallel").rglob("*.py")) for one in _in_docstrings(file)]
    seen: Counter[str] = Counter()
    numbered = []
    for one in found:
        seen[one.name] += 1
        count = seen[one.name]
        numbered.append(one if count == 1 else one._replace(name=f"{one.name} {count}"))
    return numbered


def _on_page(page: Path) -> Iterator[Block]:
    text, name = page.read_text(), str(page.relative_to(ROOT))
    prose = re.sub(r"```.*?```", lambda block: " " * len(block[0]), text, flags=re.DOTALL)  # where # begins comments
    headings = list(_HEADING.finditer(prose))
    ends = [one.start() for one in headings[1:]] + [len(prose)]
    for found in _FENCED.finditer(text):
        heading, end = next(pair for pair in zip(headings, ends, strict=True) if found.start() < pair[1])
        code = re.sub(f"^{re.escape(found['lead'].rstrip())} ?", "", found["code"], flags=re.MULTILINE)
        code = textwrap.dedent(code) if found["lead"] else found["code"]
        yield Block(f"{name}: {heading['heading']}", name, code, prose[heading.start() : end])


def _in_docstrings(file: Path) -> Iterator[Block]:
    """Of literal blocks (``::``) those that are code: others list files, or show formats."""
    text = file.read_text()
    if "::\n" not in text:
        return  # parsing takes long
    name = str(file.relative_to(ROOT))
    module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for place, node in _documented(ast.parse(text), module):
        for found in _LITERAL.finditer((ast.get_docstring(node) or "") + "\n"):
            code = textwrap.dedent(found["code"]).rstrip() + "\n"
            if _LOOKS_LIKE_CODE.search(code):
                yield Block(place, name, code)


_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _documented(node: _Documented, name: str) -> Iterator[tuple[str, _Documented]]:
    yield name, node
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _documented(child, f"{name}.{child.name}")
