"""Files outside ``docs/`` that pages link to. Each becomes a page of the site, so no link leaves the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

__all__ = ["ROOT", "linked_files", "page_of", "place_of", "text_of", "with_links"]

ROOT: Final = Path(__file__).parents[2]
_DOCS: Final = "docs/"
_FOLDER: Final = "repository/"
_LINK: Final = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
_CODE: Final = re.compile(r"(^ *(?:> )?```.*?^ *(?:> )?```$|(?<!`)`[^`\n]+`(?!`))", re.MULTILINE | re.DOTALL)
_LANGUAGES: Final = {".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".json": "json", ".sh": "sh"}
_PICTURES: Final = {".svg", ".png"}


def linked_files(pages: Mapping[str, str]) -> list[Path]:
    """README.md and the other pages beside it, the files and folders that pages link to, and those that these link to.

    ``pages``: the text of each page by its path in the repository.
    """
    found: dict[Path, None] = {}
    waiting = [*ROOT.glob("*.md")]
    for place, text in pages.items():
        waiting += _targets(place, text)
    while waiting:
        path = waiting.pop()
        if path in found or not path.exists() or path.is_relative_to(ROOT / "docs"):
            continue
        found[path] = None
        if path.is_dir():
            waiting += _listed(path)
        if path.suffix == ".md" or path.is_dir():
            waiting += _targets(place_of(path), text_of(path))
    return sorted(found)


def place_of(path: Path) -> str:
    """The path in the repository. For a folder with a README, that of its README."""
    readme = path / "README.md"
    return str((readme if readme.exists() else path).relative_to(ROOT))


def page_of(place: str) -> str:
    """The page of the site that shows this file, or folder, of the repository."""
    path = ROOT / place
    if place.startswith(_DOCS):
        return place.removeprefix(_DOCS)
    if path.is_dir():
        return page_of(place_of(path)) if (path / "README.md").exists() else f"{_FOLDER}{place.rstrip('/')}/index.md"
    if path.suffix == ".md" or path.suffix in _PICTURES:
        return _FOLDER + place
    return f"{_FOLDER}{place}.md"


def text_of(path: Path) -> str:
    """The page of a file or folder, as Markdown."""
    if path.suffix == ".md":
        return path.read_text()
    place = str(path.relative_to(ROOT))
    if path.is_dir():
        readme = path / "README.md"
        if readme.exists():
            return readme.read_text()
        lines = [f"- [{one.name}]({one.name})" for one in _listed(path)]
        return f"# {place}\n\n" + "\n".join(lines) + "\n"
    language = _LANGUAGES.get(path.suffix, "text")
    return f"# {place}\n\n``````{language}\n{path.read_text()}\n``````\n"


def with_links(text: str, place: str) -> str:
    """The text of a page with links to the pages of the site in place of links to files of the repository."""
    here = posixpath.dirname(page_of(place))

    def link(found: re.Match[str]) -> str:
        target = _target(place, found["target"])
        if target is None or not (ROOT / target).exists():
            return found[0]
        return f"{found['before']}{posixpath.relpath(page_of(target), here)}{found['anchor'] or ''}"

    return _outside_code(text, lambda part: _LINK.sub(link, part))


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    parts = _CODE.split(text)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def _targets(place: str, text: str) -> Iterator[Path]:
    for found in _LINK.finditer(_CODE.sub("", text)):
        if (target := _target(place, found["target"])) is not None:
            yield ROOT / target


def _target(place: str, link: str) -> str | None:
    """A path in the repository; None for an address elsewhere."""
    if ":" in link or link.startswith("/"):
        return None
    folder = place if (ROOT / place).is_dir() else posixpath.dirname(place)
    return posixpath.normpath(posixpath.join(folder, link))


def _listed(folder: Path) -> list[Path]:
    """What the page of a folder lists."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.name != "__pycache__" and (path.is_dir() or path.suffix in {*_LANGUAGES, *_PICTURES, ".md"})
    )
