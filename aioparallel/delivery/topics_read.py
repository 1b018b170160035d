"""Which topics a consumer reads: those given to it and its retry topics, but no topic that it writes to by itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from aioparallel.records.errors import ConfigurationError

__all__ = ["left_out", "topics_read"]

_IS_READ = "is one of the topics that are read: a consumer that reads what it writes never ends; leave it out of topics"
Topics = Sequence[str] | re.Pattern[str]

_INLINE_FLAGS = re.compile(r"(?:\s*\(\?(?:[aiLmsux]+|#[^)]*)\))+")  # one or more, perhaps with comments between them


def left_out(topics: Topics, own: Mapping[str, str]) -> list[str]:
    """Return the consumer's own topics that a pattern matches. ``own``: the option that names each."""
    return [topic for topic in own if topics.fullmatch(topic)] if isinstance(topics, re.Pattern) else []


def topics_read(topics: Topics, own: Mapping[str, str], retry_topics: Mapping[str, float]) -> Topics:
    """Return what to subscribe to. A pattern is changed so that it does not match ``own`` topics: a consumer that reads
    what it writes never ends.

    Raises ConfigurationError if a list names one of them.
    """
    if not isinstance(topics, re.Pattern):
        for topic in topics:
            if topic in own:
                raise ConfigurationError(own[topic], topic, _IS_READ)
        return (*topics, *(topic for topic in retry_topics if topic not in topics))
    out = left_out(topics, own)
    if not out and not retry_topics:
        return topics
    # Flags at the beginning are in topics.flags already. Within a larger pattern they would be an error.
    found = _INLINE_FLAGS.match(topics.pattern)
    text = topics.pattern if found is None else topics.pattern[found.end() :]
    text = f"(?:{text}\n)" if topics.flags & re.VERBOSE else f"(?:{text})"  # a verbose pattern may end with a comment
    if out:
        text = rf"(?!(?:{_exactly(out)})\Z){text}"
    if retry_topics:
        text = f"{text}|{_exactly(retry_topics)}"
    return re.compile(text, topics.flags)


def _exactly(topics: Sequence[str] | Mapping[str, float]) -> str:
    """Match these names only. Topic names are case-sensitive, even if the pattern ignores case."""
    return "(?-i:" + "|".join(map(re.escape, topics)) + ")"
