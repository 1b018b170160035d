"""The Java library's own offset maps: written for us, and ours read, by the program OffsetMaps."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aioparallel.offsets import OffsetMap
from tests.support.interop.java_programs import JavaPrograms

__all__ = ["Encodings", "java_decodes", "java_encodes"]

_TIMEOUT = 120.0


class Encodings(NamedTuple):
    """What the library writes for one map: a text by format, and the one that it would commit."""

    texts: dict[str, str]
    picked: str | None


def java_encodes(programs: JavaPrograms, maps: Sequence[OffsetMap]) -> list[Encodings]:
    """The library's encodings of each map, all that can hold it, those with zstd too."""
    lines = (f"encode {m.base_offset} {m.highest_succeeded} {_offsets(m.incompletes)}" for m in maps)
    return [_encodings(answer) for answer in _ask(programs, lines)]


def java_decodes(programs: JavaPrograms, texts: Sequence[tuple[int, str]]) -> list[OffsetMap | str]:
    """What the library reads in each text committed beside its base offset; a sentence where it refuses."""
    answers = _ask(programs, (f"decode {base} {text}" for base, text in texts))
    return [_decoded(base, answer) for (base, _), answer in zip(texts, answers, strict=True)]


def _ask(programs: JavaPrograms, lines: Iterable[str]) -> list[str]:
    run = subprocess.run(
        programs.command("OffsetMaps"),
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    assert run.returncode == 0, f"OffsetMaps ended with code {run.returncode}; it said:\n{run.stderr}"
    return run.stdout.splitlines()


def _encodings(answer: str) -> Encodings:
    texts = dict(word.split("=", 1) for word in answer.split(" ")[1:])
    return Encodings(texts, texts.pop("picked", None))


def _decoded(base: int, answer: str) -> OffsetMap | str:
    word, rest = answer.split(" ", 1)
    if word != "decoded":
        return rest
    highest, offsets = rest.split(" ")
    incompletes = () if offsets == "-" else tuple(map(int, offsets.split(",")))
    return OffsetMap(base, int(highest), incompletes)


def _offsets(offsets: Sequence[int]) -> str:
    return ",".join(map(str, offsets)) or "-"
