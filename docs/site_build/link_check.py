"""Checks a built site: links, anchors, requests to other hosts, and markup that was not rendered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

__all__ = ["problems"]

_LOADED: Final = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "embed": "src"}
_LOADING_LINKS: Final = {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "modulepreload", "prefetch"}
_FROM_STYLES: Final = re.compile(r"(?:url\(|@import )\s*['\"]?(?P<address>(?:https?:)?//[^'\")\s]+)")
_RAW: Final = re.compile(r":(?:class|meth|func|attr|mod|data|exc|obj):")
_NO_CONTENT: Final = {"404.html"}  # its links are absolute, from the root of the server


class _Page(HTMLParser):
    """What a page has: identifiers, links, what it loads, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.text: list[str] = []
        self._skipped = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in _LOADED and _LOADED[tag] in given:
            self.loaded.append(given[_LOADED[tag]])
        if tag == "link" and _LOADING_LINKS & set(given.get("rel", "").split()):
            self.loaded.append(given.get("href", ""))
        self._skipped += tag in ("script", "style", "pre")

    def handle_endtag(self, tag: str) -> None:
        self._skipped -= tag in ("script", "style", "pre")

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self.text.append(data)


def problems(site: Path) -> list[str]:
    """A line for each dead link, each file from another host, and each role that stands there as text."""
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    found: list[str] = []
    for path, page in pages.items():
        name = str(path.relative_to(site))
        found += [f"{name}: loads {address}" for address in page.loaded if _is_elsewhere(address)]
        if name in _NO_CONTENT:
            continue
        found += [f"{name}: {role} is not rendered" for text in page.text for role in _RAW.findall(text)]
        for link in [*page.links, *page.loaded]:
            if not _is_elsewhere(link) and (wrong := _dead(link, path, site, pages)):
                found.append(f"{name}: {link}: {wrong}")
    return found + list(_loaded_by_styles(site))


def _is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.scheme or parts.netloc)


def _dead(link: str, path: Path, site: Path, pages: dict[Path, _Page]) -> str | None:
    parts = urlsplit(link)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_relative_to(site.resolve()) or not target.exists():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].ids:
        return "no such anchor"
    return None


def _loaded_by_styles(site: Path) -> Iterator[str]:
    for path in sorted(site.rglob("*.css")):
        for found in _FROM_STYLES.finditer(path.read_text()):
            yield f"{path.relative_to(site)}: loads {found['address']}"
