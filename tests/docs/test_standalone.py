"""A block compiles as it is copied from the page, and uses only names that its reader has.

A reader has the names of earlier blocks of the page, and those that the section of the block names in its text."""

from __future__ import annotations

import builtins
import re
import symtable
from collections.abc import Iterator
from typing import Final

import pytest

from .blocks import Block, blocks

BLOCKS: Final = [one for one in blocks() if one.page.endswith(".md")]
_OF_MODULES: Final = {*vars(builtins), "__name__", "__file__"}


@pytest.mark.parametrize("block", [pytest.param(one, id=one.name) for one in BLOCKS])
def test_it_compiles(block: Block) -> None:
    """``await`` and ``async with`` are within functions."""
    compile(block.code, block.name, "exec", dont_inherit=True)


@pytest.mark.parametrize("block", [pytest.param(one, id=one.name) for one in BLOCKS])
def test_its_names_are_known(block: Block) -> None:
    """Defined here or earlier on the page, or named in the section: `consumer` is yours."""
    earlier = BLOCKS[: BLOCKS.index(block)]
    known = _OF_MODULES.union(*(_defined(one.code) for one in earlier if one.page == block.page))
    known |= {word for code in re.findall(r"`([^`\n]+)`", block.text) for word in re.findall(r"\w+", code)}
    assert _used(block.code) - _defined(block.code) - known == set()


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _defined(code: str) -> set[str]:
    """Names that the block assigns at its top, ``global`` ones included."""
    top = symtable.symtable(code, "block", "exec")
    found = {one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported()}
    return found | {
        one.get_name() for table in _tables(top) for one in table.get_symbols() if one.is_assigned() and one.is_global()
    }


def _used(code: str) -> set[str]:
    """Names that it looks up in its module."""
    top = symtable.symtable(code, "block", "exec")
    return {
        one.get_name()
        for table in _tables(top)
        for one in table.get_symbols()
        if one.is_referenced() and (one.is_global() or table is top)
    }
