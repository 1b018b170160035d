"""Plays seeds: one with its whole story, or many on several cores."""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from tests.support.garbage import set_aside

from .play import Played, play

PlayOne = Callable[[int], Played]
_CHUNK = 10  # seeds that a worker plays before it reports


def main() -> int:
    """0 when nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one and tell its story")
    parser.add_argument("--seeds", type=int, default=300, help="how many to play (default: 300)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one for each core)")
    parser.add_argument("--eager", action="store_true", help="with asyncio's eager task factory (Python 3.12)")
    parser.add_argument(
        "--group-protocol", choices=("classic", "consumer"), default="classic", help="of all members (default: classic)"
    )
    asked = parser.parse_args()
    set_aside()
    play_one = partial(play, eager=asked.eager, group_protocol=asked.group_protocol)
    if asked.seed is not None:
        return _tell(play_one(asked.seed, tell=True))
    return _play_many(range(asked.first, asked.first + asked.seeds), asked.jobs, play_one)


def _tell(played: Played) -> int:
    print(*played.story, sep="\n")
    print(
        f"\nseed {played.seed}: {played.handled} calls of handlers in {played.seconds:.1f} virtual seconds, "
        f"story {played.digest:016x}; {len(played.violations)} violations"
    )
    print(*(f"  {violation}" for violation in played.violations), sep="\n")
    return bool(played.violations)


def _play_chunk(seeds: range, play_one: PlayOne) -> tuple[list[Played], float]:
    began = time.process_time()
    return [play_one(seed) for seed in seeds], time.process_time() - began


def _play_many(seeds: range, jobs: int, play_one: PlayOne) -> int:
    found, handled, cpu, virtual = 0, 0, 0.0, 0.0
    began = time.monotonic()
    for count, (chunk, seconds) in zip(itertools.count(_CHUNK, _CHUNK), _chunks(seeds, jobs, play_one), strict=False):
        cpu += seconds
        for played in chunk:
            handled += played.handled
            virtual += played.seconds
            if played.violations:
                found += 1
                print(f"\rseed {played.seed}: {len(played.violations)} violations", " " * 60)
                print(*(f"  {violation[:400]}" for violation in played.violations[:5]), sep="\n", flush=True)
        if sys.stderr.isatty() or count % 500 == 0:
            left = (time.monotonic() - began) / count * max(0, len(seeds) - count)
            print(
                f"\r{min(count, len(seeds))} of {len(seeds)} seeds, {found} with violations, {left:.0f} s to go   ",
                end="" if sys.stderr.isatty() else "\n",
                file=sys.stderr,
                flush=True,
            )
    print(
        f"\r{len(seeds)} seeds, {handled} calls of handlers, {virtual:.0f} virtual seconds, {cpu:.0f} s of CPU: "
        f"{found} with violations" + (" (tell one: python -m tests.simulation --seed N)" if found else "")
    )
    return bool(found)


def _chunks(seeds: range, jobs: int, play_one: PlayOne) -> Iterator[tuple[list[Played], float]]:
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        futures = [pool.submit(_play_chunk, chunk, play_one) for chunk in chunks]
        for future in concurrent.futures.as_completed(futures):
            yield future.result()


if __name__ == "__main__":
    sys.exit(main())
