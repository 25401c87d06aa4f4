"""Extract and save an architecture in this process; load and verify it in one that has only the file.

python -m tests.architectures.sweep [NAME ...]      every architecture, or those named; prints a line each
"""

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from tests.architectures import NOT_CAPTURED, Architecture, architectures
from tests.forking.programs import FRESH, ROOT
from torch_ir import IR, ExportError, TorchIRError, extract_ir, verify_ir_with_state_dict

CAPTURED, WITH_VALUES, REFUSED = "captured", "captured with values", "refused"


def extract(architecture: Architecture, folder: Path) -> str:
    """Build on meta, extract and save; return the outcome. Models that need values get them in a second attempt."""
    with torch.device("meta"):
        model = architecture.build()
    inputs = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), architecture.inputs())
    file = folder / f"{architecture.name}.json"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # values lost on meta are expected here: verification finds them
        try:
            extract_ir(model, (), kwargs=inputs).save(file)
            return CAPTURED
        except ExportError:
            pass
        except TorchIRError as error:
            return f"{type(error).__name__}: {error}"
        try:
            extract_ir(architecture.build(), (), kwargs=architecture.inputs(), strict=False).save(file)
            return WITH_VALUES
        except TorchIRError:
            return REFUSED


def verify(architecture: Architecture, folder: Path) -> str:
    """Load the file, execute it with real weights and compare with the real model; empty when equal."""
    try:
        ir = IR.load(folder / f"{architecture.name}.json")
        model = architecture.build()
        is_valid, report = verify_ir_with_state_dict(
            ir, model.state_dict(), model, (), test_kwargs=architecture.inputs()
        )
    except TorchIRError as error:
        return f"{type(error).__name__}: {error}"
    return "" if is_valid else str(report)


def verify_in_fresh_process(names: Sequence[str], folder: Path, programs: Path | None = None) -> dict[str, str]:
    """Return the verdict of `verify` for each name, from a process that did not extract: forked, if there are such."""
    start = [f"{programs}/architectures"] if programs else FRESH["architectures"]
    command = [*start, "--verify", str(folder), *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def select(names: Iterable[str]) -> list[Architecture]:
    wanted = set(names)
    return [architecture for architecture in architectures() if architecture.name in wanted]


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--verify"]:
        folder = Path(arguments[1])
        warnings.simplefilter("ignore")
        print(json.dumps({each.name: verify(each, folder) for each in select(arguments[2:])}))
        return 0
    chosen = select(arguments) if arguments else architectures()
    with tempfile.TemporaryDirectory() as place:
        outcomes = {each.name: extract(each, Path(place)) for each in chosen}
        captured = [name for name, outcome in outcomes.items() if outcome in (CAPTURED, WITH_VALUES)]
        verdicts = verify_in_fresh_process(captured, Path(place))
    for name, outcome in outcomes.items():
        print(name, outcome, verdicts[name] or "verified" if name in verdicts else NOT_CAPTURED.get(name), sep=": ")
    equal = sum(not verdict for verdict in verdicts.values())
    print(f"{len(outcomes)} architectures, {len(captured)} captured, {equal} verified")
    return 0 if equal == len(captured) else 1


if __name__ == "__main__":
    sys.exit(main())
