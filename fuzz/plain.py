"""Fuzz targets without atheris, so without guidance by coverage: `python -m fuzz.plain [NAME ...] [--seconds N]`.

Inputs are the seeds of a target, damaged again and again, and random bytes. Each target runs in a process of its own,
with 4 GiB of memory and 30 seconds of computing for one input; the input that ends it is kept in `reports/fuzz`.
"""

import argparse
import os
import random
import resource
import signal
import sys
import time
import traceback
from pathlib import Path

from fuzz.targets import FOLDER, TARGETS
from tests.damage.kinds import KINDS, damaged

_MEMORY = 4 << 30
_SECONDS = 30


def fuzz(name: str, seconds: float, seed: int) -> tuple[int, Path | None]:
    """Return the number of inputs that a target ran in this time, and the failing one."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    last, count = folder / "last", folder / "count"
    if (pid := os.fork()) == 0:
        try:
            _run(name, seconds, seed, last, count)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    done = int(count.read_text())
    if not status:
        return done, None
    print(f"{name}: status {os.waitstatus_to_exitcode(status)}", file=sys.stderr)
    kept = folder / f"failed-{seed}-{done}"
    last.rename(kept)
    return done, kept


def _run(name: str, seconds: float, seed: int, last: Path, count: Path) -> None:
    chance, target = random.Random(f"{name}/{seed}"), TARGETS[name]
    pool = target.seeds()
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends a process that computes for too long
    end, done = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = _drawn(pool, chance)
        last.write_bytes(data)
        count.write_text(str(done))
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        target.check(data)
        done += 1
    count.write_text(str(done))


def _drawn(pool: list[bytes], chance: random.Random) -> bytes:
    if chance.random() < 0.3:
        return chance.randbytes(8)
    data = chance.choice(pool)
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        if data:
            data = damaged(data, chance.choice(pool), chance.choice(list(KINDS)), chance)
    return data


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz.plain", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=60, metavar="N", help="for each target (default: 60)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the inputs (default: 0)")
    arguments = parser.parse_args()
    failed = 0
    for name in arguments.names or TARGETS:
        done, path = fuzz(name, arguments.seconds, arguments.seed)
        print(f"{name:<16}{done:>10} inputs  {path or 'none failed'}", flush=True)
        failed += path is not None
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
