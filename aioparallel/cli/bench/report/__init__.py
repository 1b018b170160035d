"""What the benchmark found, for people and for programs.

::

    facts.py      the machine and the versions that a case was measured with
    store.py      results.json: every run of every case; written, read and merged
    wording.py    numbers as text
    tables.py     the rows that results.md and the terminal show
    markdown.py   results.md
    console.py    the summary on the terminal
    look.py       how all plots look
    bars.py       throughput, offset maps
    curves.py     seconds over keys, cost over keys and concurrency
    dots.py       latency
    plots.py      which plots are drawn from which cases
"""
