"""Run the benchmarks and print their tables, or write them into docs/benchmarks.md.

python -m benchmarks [NAME ...] [--all] [--against] [--write]
"""

import argparse
import sys
import warnings
from typing import Any

from benchmarks import (
    architectures,
    auto_choice,
    checked_load,
    deep,
    deep_files,
    execute,
    explorer,
    extract,
    files,
    first_call,
    growth,
    habits,
    huge,
    latency,
    onnx_functions,
    open_sizes,
    optimise,
    peer_optimisers,
    pipeline,
    plan,
    shard,
    shell,
    streaming,
)
from benchmarks.measure import PAGE, has_table, machine, replace_table

TABLES: dict[str, Any] = {
    "extract": extract, "first_call": first_call, "shell": shell, "deep": deep, "growth": growth, "huge": huge,
    "habits": habits,
    "open_sizes": open_sizes, "architectures": architectures, "files": files, "checked_load": checked_load,
    "deep_files": deep_files, "onnx_functions": onnx_functions,
    "execute": execute, "streaming": streaming, "optimise": optimise, "peer_optimisers": peer_optimisers,
    "latency": latency, "auto_choice": auto_choice, "explorer": explorer, "shard": shard,
    "pipeline": pipeline, "plan": plan,
}  # fmt: skip
QUICK = ("extract", "growth", "files", "execute")
ALONE = ("peer_optimisers", "latency", "auto_choice", "explorer")  # need further packages, half an hour, a browser
EVERY = tuple(name for name in TABLES if name not in ALONE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run the benchmarks.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which: {', '.join(TABLES)} (default: {', '.join(QUICK)})"
    )
    parser.add_argument("--all", action="store_true", help=f"run all but {' and '.join(ALONE)}, in about half an hour")
    parser.add_argument("--against", action="store_true", help="run torch.export on the huge models, too")
    parser.add_argument("--write", action="store_true", help="replace the tables in docs/benchmarks.md")
    options = parser.parse_args()
    unknown = set(options.names) - set(TABLES)
    if unknown:
        parser.error(f"no benchmark is called {min(unknown)!r}; there are {', '.join(TABLES)}")
    names = EVERY if options.all else options.names or QUICK
    unwritten = [name for name in names if not has_table(name)] if options.write else []
    if unwritten:  # before hours of measuring
        parser.error(f"{PAGE.name} has no table for {unwritten[0]!r}; leave out --write")
    warnings.simplefilter("ignore")
    asked = {"huge": {"against": options.against}, "architectures": {"write": options.write}}
    for name in names:
        module = TABLES[name]
        print(f"\n{name}: {module.__doc__}\n", flush=True)
        found = module.run(**asked.get(name, {}))
        print(found, flush=True)
        if options.write and name != "architectures":  # which writes its own tables
            replace_table(name, f"{found}\n\nMeasured on {machine()}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
