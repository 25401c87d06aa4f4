"""Sweep back ends and write the result of every case as a line of JSON.

python -m tests.backend_sweep --backend openvino --dtype float32 --part 0/8 -o reports/backends
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

MEMORY = 16 << 30


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.backend_sweep", description=(__doc__ or "").splitlines()[0])
    ways = "a back end, `stablehlo` (in XLA), or `own`: all ways through the library itself"
    parser.add_argument("--backend", required=True, help=ways)
    parser.add_argument(
        "--dtype",
        required=True,
        help="a dtype of the database, `attributes`, `functions`, `chains`, `open`, `pairs`, `views` or `nodes`",
    )
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--skip", default="", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    return here(options) if options.here else guarded(options)


def guarded(options: argparse.Namespace) -> int:
    """Run the sweep in a separate process; resume after a case that crashed it."""
    for _ in range(60):
        done = subprocess.run([sys.executable, "-m", "tests.backend_sweep", *sys.argv[1:], "--here"], check=False)
        if done.returncode >= 0:  # a crash is a signal
            return done.returncode
        print(f"{_name(options)}: ended by {done.returncode}", file=sys.stderr)
    return 1


def _name(options: argparse.Namespace) -> str:
    return f"{options.backend}-{options.dtype}-{options.part.replace('/', 'of')}"


def here(options: argparse.Namespace) -> int:
    """Sweep; a file of cases that are being tried shows after a crash which ones ended the process."""
    from tests.backend_sweep.judging import CRASHED
    from tests.backend_sweep.kinds import cases_of
    from tests.backend_sweep.own_paths import PATHS
    from tests.backend_sweep.sweep import Outcome, swept
    from tests.proof import quiet

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)) if options.backend != "inductor" else None
    os.environ.setdefault("TORCH_IR_CACHE", str(options.output / "cache"))
    options.output.mkdir(parents=True, exist_ok=True)
    path, trying = options.output / f"{_name(options)}.jsonl", options.output / f"{_name(options)}.trying"
    done = {json.loads(line)["case"] for line in path.read_text().splitlines()} if path.exists() else set()
    suspects = json.loads(trying.read_text()) if trying.exists() else []
    part, parts = map(int, options.part.split("/"))
    start = time.monotonic()
    with quiet(), path.open("a") as out:
        found = cases_of(options.dtype, part, parts, options.samples)
        cases = [case for case in found if case.name not in done]
        print(f"{_name(options)}: {len(cases)} cases in {time.monotonic() - start:.0f} s", file=sys.stderr)
        if len(suspects) == 1:
            for case in [case for case in cases if case.name in suspects]:
                out.writelines(
                    json.dumps(Outcome(options.backend, case, values, CRASHED).record()) + "\n" for values in case.runs
                )
            cases = [case for case in cases if case.name not in suspects]
        alone = [[case] for case in cases if case.name in suspects]
        others = [case for case in cases if case.name not in suspects]
        batches = [*alone, *(others[at : at + options.batch] for at in range(0, len(others), options.batch))]
        for batch in batches:
            trying.write_text(json.dumps([case.name for case in batch]))
            names = PATHS if options.backend == "own" else [options.backend]
            outcomes = [outcome for name in names for outcome in swept(name, batch, options.batch)]
            out.writelines(json.dumps(outcome.record()) + "\n" for outcome in outcomes)
            out.flush()
    trying.unlink(missing_ok=True)
    print(f"{_name(options)}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
