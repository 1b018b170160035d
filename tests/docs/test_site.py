"""The parts of the site: docstrings as Markdown, links to files of the repository, and the checks of a built site.
(``make site`` builds all of it.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.site_build import public_names
from docs.site_build.docstrings import to_markdown
from docs.site_build.link_check import problems
from docs.site_build.public_names import PAGES, Unlisted, page_text, public_paths
from docs.site_build.repository import ROOT, linked_files, page_of, place_of, text_of, with_links


def _link(name: str) -> str | None:
    return {"Record": "aioparallel.Record", "a.b.stop": "aioparallel.stop", "HandlerTimeout": "aioparallel.T"}.get(name)


@pytest.mark.parametrize(
    ("docstring", "markdown"),
    [
        ("A ``value`` here.", "A `value` here."),
        (":class:`Record` is public.", "[`Record`][aioparallel.Record] is public."),
        (":meth:`~a.b.stop` ends it.", "[`stop()`][aioparallel.stop] ends it."),
        (":class:`~a.private.Other` has no heading.", "`Other` has no heading."),
        ("Raises HandlerTimeout, `HandlerTimeout`.", "Raises [HandlerTimeout][aioparallel.T], `HandlerTimeout`."),
        (":meth:`the end <a.b.stop>`", "[`the end`][aioparallel.stop]"),
        (
            "Like this::\n\n    await stop()\n    x = 1\n\nEnd.",
            "Like this:\n\n```python\nawait stop()\nx = 1\n```\n\nEnd.",
        ),
        ("Words::\n\n    kind  offset\n\nEnd.", "Words:\n\n```text\nkind  offset\n```\n\nEnd."),
        ("::\n\n    x = ':class:`Record`'\n", "```python\nx = ':class:`Record`'\n```"),
        (
            "====  ====\nname  size\n====  ====\na     1\nb     2\n====  ====",
            "| name | size |\n| --- | --- |\n| a | 1 |\n| b | 2 |",
        ),
    ],
)
def test_a_docstring_becomes_markdown(docstring: str, markdown: str) -> None:
    """Literals, roles, blocks and tables."""
    assert to_markdown(docstring, _link) == markdown


def test_the_files_of_a_package_are_left_out() -> None:
    """They stand in the docstring of its module."""
    docstring = "Handlers.\n\nIts files::\n\n    a.py  the first\n\nNeeds ``b``.\n"
    assert to_markdown(docstring, _link, of_module=True) == "Handlers.\n\n\nNeeds `b`."


def test_each_public_name_is_on_one_page() -> None:
    """Of every module whose names are public."""
    assert "aioparallel.ParallelConsumer" in public_paths()
    (errors,) = (page for page in PAGES if page.title == "Errors")
    assert "::: aioparallel.RetryLater\n" in page_text(errors)


def test_a_public_name_without_a_page_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has its name."""
    monkeypatch.setattr(public_names, "PAGES", [one for one in PAGES if one.uri != "api/handlers.md"])
    with pytest.raises(Unlisted, match=r"aioparallel\.batches"):
        public_paths()


@pytest.mark.parametrize(
    ("place", "text", "shown"),
    [
        ("README.md", "[a](docs/failures.md#retries)", "[a](../failures.md#retries)"),
        ("docs/failures.md", "[a](http.md)", "[a](http.md)"),
        ("docs/decisions/0008-speed.md", "[a](../performance.md)", "[a](../performance.md)"),
        ("docs/state.md", "[a](../README.md#scale)", "[a](repository/README.md#scale)"),
        ("docs/state.md", "[a](../examples/first.py)", "[a](repository/examples/first.py.md)"),
        ("docs/state.md", "[a](../examples)", "[a](repository/examples/README.md)"),
        ("docs/state.md", "[a](../examples/flights/)", "[a](repository/examples/flights/index.md)"),
        ("docs/state.md", "[a](https://kafka.apache.org) [b](#here)", "[a](https://kafka.apache.org) [b](#here)"),
        ("docs/state.md", "`[a](../README.md)`", "`[a](../README.md)`"),
        ("docs/state.md", "```\n[a](../README.md)\n```", "```\n[a](../README.md)\n```"),
    ],
)
def test_links_lead_to_pages_of_the_site(place: str, text: str, shown: str) -> None:
    """Those to files of the repository; others stay."""
    assert with_links(text, place) == shown


def test_files_that_pages_link_to_become_pages() -> None:
    """And those that these link to."""
    found = linked_files({"docs/x.md": "[all](../examples)"})
    assert {ROOT / "README.md", ROOT / "examples", ROOT / "examples/flights/handler.py"} <= {*found}
    assert page_of(place_of(ROOT / "examples")) == "repository/examples/README.md"
    assert "- [handler.py](handler.py)" in text_of(ROOT / "examples/flights")


def test_what_is_wrong_with_a_site_is_found(tmp_path: Path) -> None:
    """Dead links and anchors, roles in the text, and what other hosts would have to send."""
    (tmp_path / "index.html").write_text(
        '<a href="other/">a</a><a href="gone/">b</a><a href="other/#there">c</a><a href="other/#gone">d</a>'
        '<a href="https://elsewhere.example/">e</a><script src="https://cdn.example/x.js"></script>'
        '<link rel="stylesheet" href="//cdn.example/x.css"><p>See :class:`Record`.</p><pre>:class:</pre>'
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text('<h1 id="there">a</h1><img src="gone.png">')
    (tmp_path / "site.css").write_text("@import 'https://fonts.example/a.css'; a { background: url(data:x) }")
    assert problems(tmp_path) == [
        "index.html: loads https://cdn.example/x.js",
        "index.html: loads //cdn.example/x.css",
        "index.html: :class: is not rendered",
        "index.html: gone/: no such file",
        "index.html: other/#gone: no such anchor",
        "other/index.html: gone.png: no such file",
        "site.css: loads https://fonts.example/a.css",
    ]
