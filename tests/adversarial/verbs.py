"""The commands that read an untrusted file, with the options that make them do the most work."""

from pathlib import Path

from torch_ir.cli.dispatch import main

# FILE is the graph, SECOND a slightly smaller one of the same shape, OUT a folder for results.
VERBS: dict[str, tuple[str, ...]] = {
    "load": ("ops", "FILE"),
    "check": ("check", "FILE"),
    "info": ("info", "FILE"),
    "cost": ("cost", "FILE"),
    "draw": ("draw", "FILE", "-o", "OUT/graph.dot", "--max-nodes", "0"),
    "draw folded": ("draw", "FILE", "-o", "OUT/folded.mmd", "--fold", "--depth", "2"),
    "optimize clean": ("optimize", "FILE", "-o", "OUT/clean.json", "--level", "clean"),
    "optimize full": ("optimize", "FILE", "-o", "OUT/full.json", "--level", "full"),
    "diff": ("diff", "FILE", "SECOND", "--exit-zero"),
    "lower": ("lower", "FILE", "--target", "OUT/target.py:none", "-o", "OUT/lowered.json"),
    "coverage": ("coverage", "FILE", "--target", "OUT/contract.json"),
    "split": ("split", "FILE", "--stages", "4", "--anywhere", "-o", "OUT/split.json"),
    "explore": ("explore", "FILE", "-o", "OUT/page.html"),
    "convert gzip": ("convert", "FILE", "-o", "OUT/graph.json.gz"),
    "convert protobuf": ("convert", "FILE", "-o", "OUT/graph.pb"),
    "convert python": ("convert", "FILE", "-o", "OUT/graph.py"),
    "convert mlir": ("convert", "FILE", "-o", "OUT/graph.mlir"),
}
_TARGET = "from torch_ir import Target\n\nnone = Target('none')\n"
_CONTRACT = '{"name": "few", "ops": ["aten.relu.default", "aten.add.Tensor"]}'


def write_target(out: Path) -> None:
    """Write the target and the contract for `lower` and `coverage`."""
    (out / "target.py").write_text(_TARGET)
    (out / "contract.json").write_text(_CONTRACT)


def run_verb(verb: str, file: Path, second: Path, out: Path) -> int:
    """Run a verb on a file and return its exit status."""
    words = {"FILE": str(file), "SECOND": str(second)}
    argv = [words.get(word, word.replace("OUT", str(out))) for word in VERBS[verb]]
    return main([argv[0], "-q", *argv[1:]])
