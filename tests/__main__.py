"""`python -m tests`: check the catalogue, or a part of it, and write its reports."""

import argparse
import sys
import tempfile
from pathlib import Path

from catalogue import Entry, UnknownNameError, entries, find, find_category
from tests.comprehensive import Result, check, verdict, write_report, write_summary


def main() -> int:
    options = _parse()
    try:
        chosen = _select(options.category, options.model)
    except UnknownNameError as error:
        print(f"tests: {error}", file=sys.stderr)
        return 2
    if options.list_models:
        _print_list(chosen)
        return 0
    results = _run(chosen, options.output)
    _print_table(results)
    return 0 if all(result.passed for result in results) else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests", description="Check the models of the catalogue.")
    parser.add_argument("--list-models", action="store_true", help="print the selection and stop")
    parser.add_argument("--category", metavar="NAME", help="only the models of this category")
    parser.add_argument("--model", metavar="NAME", help="only this model")
    parser.add_argument("--output", metavar="DIR", type=Path, help="write IR, picture and report of each model here")
    return parser.parse_args()


def _select(category: str | None, model: str | None) -> list[Entry]:
    chosen = find_category(category) if category else entries()
    if not model:
        return chosen
    entry = find(model)
    if entry not in chosen:
        raise UnknownNameError(f"model {model!r} is of category {entry.category!r}, not {category!r}")
    return [entry]


def _run(chosen: list[Entry], output: Path | None) -> list[Result]:
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for i, entry in enumerate(chosen, 1):
            print(f"[{i}/{len(chosen)}] {entry.category}-{entry.name} ", end="", flush=True)
            result = check(entry, output or Path(scratch))
            print(f"{verdict(result)} {sum(result.seconds.values()):.2f} s")
            results.append(result)
            if output:
                write_report(result, output)
    if output:
        print(f"reports: {write_summary(results, output)}")
    return results


def _print_list(chosen: list[Entry]) -> None:
    for entry in chosen:
        print(f"{entry.category:<11}{entry.name:<25}{entry.about}")


def _print_table(results: list[Result]) -> None:
    print(f"\n{'category':<11}{'model':<25}{'verdict':<20}{'nodes':>6}{'seconds':>9}")
    for result in results:
        nodes = len(result.ir.nodes) if result.ir else "-"
        seconds = sum(result.seconds.values())
        print(f"{result.entry.category:<11}{result.entry.name:<25}{verdict(result):<20}{nodes:>6}{seconds:>9.2f}")
    failed = [result for result in results if not result.passed]
    for result in failed:
        print(f"\n{result.entry.name}: {result.failed}: {result.message}")
    print(f"\n{len(results) - len(failed)} of {len(results)} passed")


if __name__ == "__main__":
    sys.exit(main())
