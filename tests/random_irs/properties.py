"""Properties of every graph: every format round-trips exactly, and no analysis fails.

A property gives what is wrong, in a line that begins with its kind, or nothing.
"""

import copy
import json
import pickle
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.texts import fault_of_reading
from torch_ir.analysis import cost, cost_report, diff, liveness
from torch_ir.analysis.shapes.inference import wrong_shapes
from torch_ir.cli.verbs.info import summarise
from torch_ir.draw import ir_to_mermaid, to_model_explorer
from torch_ir.draw.dot import to_dot
from torch_ir.draw.mermaid import to_mermaid
from torch_ir.draw.scene import build_scene
from torch_ir.errors import TorchIRError
from torch_ir.formats import from_protobuf, to_protobuf
from torch_ir.ir import IR
from torch_ir.passes import optimize
from torch_ir.passes.optimize_levels import LEVELS
from torch_ir.targets import Contract, Target, coverage, describe

Property = Callable[[IR], str]
_TARGET = Target("none")
_CONTRACT = Contract("few", ["aten.add.Tensor", "aten.relu.default", "aten.mm.default"])


def through_json(ir: IR) -> IR:
    return IR.from_json(ir.to_json())


def through_other_layout(ir: IR) -> IR:
    """Write the document as any JSON tool would: other whitespace, and no digest of the text."""
    document = json.loads(ir.to_json())
    del document["digest"]
    return IR.from_json(json.dumps(document, indent=1))


def through_dict(ir: IR) -> IR:
    return IR.from_dict(ir.to_dict())


def through_protobuf(ir: IR) -> IR:
    again = from_protobuf(to_protobuf(ir))
    assert to_protobuf(again) == to_protobuf(ir), "protobuf of what was read differs"
    return from_protobuf(to_protobuf(through_json(again)))


def through_files(ir: IR, name: str = "graph.json") -> IR:
    """Saved with its side file, read and saved again: the same names and the same bytes."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "one", name), Path(folder, "two", name)
        ir.save(first)
        again = IR.load(first)
        again.save(second)
        files = [{path.name: path.read_bytes() for path in one.parent.iterdir()} for one in (first, second)]
        assert files[0] == files[1], "the files of what was read differ"
        return through_json(again)


ROUND_TRIPS: dict[str, Callable[[IR], IR]] = {
    "json": through_json,
    "other layout": through_other_layout,
    "gzip": lambda ir: through_files(ir, "graph.json.gz"),
    "dict": through_dict,
    "protobuf": through_protobuf,
    "files": through_files,
    "clone": IR.clone,
    "deep copy": copy.deepcopy,
    "pickle": lambda ir: pickle.loads(pickle.dumps(ir)),
}


def comes_back(ir: IR) -> str:
    """Every form is read back as the very graph that was written."""
    text = ir.to_json()
    for name, trip in ROUND_TRIPS.items():
        try:
            again = trip(ir).check()
            if again.to_json() != text:
                return f"{name}: not the same text"
            if str(again) != str(ir):
                return f"{name}: not the same print"
            if not (found := diff(ir, again, ignore_origins=False)).is_equal:
                return f"{name}: {found}"
        except Exception as error:  # a valid graph can be written and read, whatever its content
            return f"{name}: {type(error).__name__}: {error}"
    return "" if ir.to_json() == text else "the given graph was changed"


def _folded(ir: IR) -> IR:
    return ir.fold_blocks().check()


def _specialized(ir: IR) -> IR:
    return ir.specialize(**{name: max(symbol.min or 0, 2) for name, symbol in ir.symbols.items()}).check()


def _optimised(ir: IR, level: str) -> IR:
    better = optimize(ir, level)[0].check()
    assert through_json(better).to_json() == better.to_json()
    return better


def _pictures(ir: IR) -> list[str]:
    scenes = [build_scene(ir), build_scene(ir, 0, fold=True), build_scene(ir, 2, fold=True, open_calls=True)]
    scenes += [build_scene(ir, depth=1), build_scene(ir, depth=2, fold=True, heat={node.name: 1 for node in ir.nodes})]
    scenes += [build_scene(ir, focus=[node.name], radius=1) for node in ir.nodes[:1]]
    painted = (paint(scene) for scene in scenes for paint in (to_mermaid, to_dot))
    return [ir_to_mermaid(ir), json.dumps(to_model_explorer(ir)), *painted]


ANALYSES: dict[str, Callable[[IR], Any]] = {
    "text": str,
    "pictures": _pictures,
    "info": summarise,
    "describe": lambda ir: [describe(node) for node in ir.all_nodes()],
    "cost": lambda ir: str(cost(ir)),
    "cost report": lambda ir: [str(cost_report(ir, by)) for by in ("module", "op", "node")],
    "liveness": lambda ir: str(liveness(ir)),
    "shapes": lambda ir: [(node.name, why) for node, why in wrong_shapes(ir)],
    "lower": lambda ir: json.dumps(_TARGET.lower(ir).to_dict(), ensure_ascii=False),
    "coverage": lambda ir: str(coverage(ir, _CONTRACT, decompose=False)),
    "fold blocks": _folded,
    "specialize": _specialized,
    **{
        f"level {level}": partial(lambda ir, level: ir.at_level(level).check(), level=level)
        for level in ("module", "function", "aten")
    },
    **{f"optimise {level}": partial(_optimised, level=level) for level in LEVELS},
}


def never_breaks(ir: IR) -> str:
    """Every analysis returns a result, or a typed error, and leaves the graph unchanged."""
    text = ir.to_json()
    for name, analyse in ANALYSES.items():
        if found := broken(ir, analyse):
            return f"{name}: {found}"
        if ir.to_json() != text:
            return f"{name}: the given graph was changed"
    return ""


def broken(ir: IR, analyse: Callable[[IR], Any]) -> str:
    """Return the unexpected exception of an analysis."""
    try:
        analyse(ir)
    except TorchIRError:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def reads_back(ir: IR) -> str:
    """The text form is read as the same graph, provenance apart."""
    try:
        return fault_of_reading(ir)
    except TorchIRError as error:
        return f"{type(error).__name__}: {error}"


PROPERTIES: dict[str, Property] = {"comes back": comes_back, "never breaks": never_breaks, "reads back": reads_back}
