"""What MkDocs needs to build the site of the documentation (``make site``; ``python -m mkdocs serve`` shows it).

::

    hooks.py         what MkDocs calls while it builds
    public_names.py  the pages of the Python reference, and the public names on each
    docstrings.py    docstrings (reStructuredText) as Markdown, and tables of parameters and options
    repository.py    files outside docs/ that pages link to: they become pages of the site
    link_check.py    checks the built site: every link, and no request to another host
    site.css         the layout of tables, parameters and the picture
    templates/       how mkdocstrings shows parameters
"""
