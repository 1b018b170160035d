"""The picture of docs/index.md is drawn by docs/picture.py."""

from __future__ import annotations

from xml.etree import ElementTree

from docs.picture import PICTURE, drawing


def test_the_picture_is_what_the_program_draws() -> None:
    """And it is well-formed."""
    assert PICTURE.read_text() == drawing(), "stale: run `make docs`"
    ElementTree.fromstring(drawing())
