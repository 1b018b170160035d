"""``python -m tests.simulation --seed N``."""
import sys, time
from .play import play
seed0=int(sys.argv[1]); n=int(sys.argv[2]) if len(sys.argv)>2 else 1
for seed in range(seed0, seed0+n):
    t=time.process_time()
    p=play(seed, tell=n==1)
    if n==1:
        print("\n".join(p.story))
    print(seed, f"cpu {time.process_time()-t:.3f} virtual {p.seconds:.1f} handled {p.handled} digest {p.digest:x}", *[v[:300] for v in p.violations[:3]], sep="\n   " if p.violations else " ")
