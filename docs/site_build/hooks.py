"""What MkDocs calls while it builds the site."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.site_build.link_check import problems
from docs.site_build.public_names import PAGES, page_text
from docs.site_build.repository import linked_files, page_of, place_of, text_of, with_links

logger = logging.getLogger("mkdocs.hooks.docs")

_PICTURE = re.compile(r'<img [^>]*src="(?P<path>[^":]*pictures/[^"]+\.svg)"[^>]*>')
_TABLE = re.compile(r"<table>(?P<head>\s*<thead>\s*<tr>\s*<th[^>]*>(?P<kind>option|field|kind|action)</th>)")
_HIDDEN = "---\nhide: [toc]\nsearch:\n  exclude: true\n---\n\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the Python reference, and those of files outside ``docs/``."""
    for page in PAGES:
        files.append(File.generated(config, page.uri, content=page_text(page)))
    pages = {f"docs/{one.src_uri}": one.content_string for one in files.documentation_pages()}
    for path in linked_files(pages):
        uri = page_of(place_of(path))
        if files.get_file_from_path(uri) is not None:
            continue
        if not uri.endswith(".md"):
            files.append(File.generated(config, uri, abs_src_path=str(path)))
        else:
            text = text_of(path)
            shows_text = path.suffix == ".md" or (path / "README.md").exists()
            files.append(File.generated(config, uri, content=text if shows_text else _HIDDEN + text))
    _PLACES.update({page_of(place_of(path)): place_of(path) for path in linked_files(pages)})
    return files


_PLACES: dict[str, str] = {}
"""The path in the repository of each page that shows a file outside ``docs/``."""


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files of the repository lead to their pages."""
    uri = page.file.src_uri
    return with_links(markdown, _PLACES.get(uri, f"docs/{uri}"))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Pictures become part of the page, so that they have its colours, light or dark. Tables of options get a mark, so
    that ``site.css`` can lay out each row as a block on a narrow screen."""

    def picture(found: re.Match[str]) -> str:
        return (Path(config.docs_dir) / "pictures" / Path(found["path"]).name).read_text()

    html = _TABLE.sub(r'<table data-rows="\g<kind>">\g<head>', _PICTURE.sub(picture, html))
    return html.replace("<td>required</td>", "<td data-required>required</td>")


def on_post_build(config: MkDocsConfig) -> None:
    """Warn of dead links and the like. With ``--strict`` a warning is an error."""
    for problem in problems(Path(config.site_dir)):
        logger.warning(problem)
