"""Commands on a valid graph: each ends with a result or a typed error, within seconds.

An input that is the text of a graph is that graph, if the full check lets it pass. Any other bytes that do not begin as
JSON does are the seed of a random graph, so that every input of a fuzzer is a valid file or is skipped. Some of these
graphs have arguments of any kind at operators that cannot be checked.
"""

import shutil
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from fuzz.target import Target
from tests.damage.graph_files import layers
from tests.damage.planning_files import DEVICE
from tests.damage.subject import new_folder
from tests.graphs import everything, mlp
from tests.random_irs.draft import random_ir
from tests.refusals import without_digest
from torch_ir import Cluster, find_plan, optimizer_state, split
from torch_ir.analysis import MemoryPlan, cost, cost_report, diff, memory_plan_of, plan_memory
from torch_ir.analysis.devices.calibration import MODES
from torch_ir.analysis.devices.device_file import device_of
from torch_ir.analysis.graph_diff.diff_text import diff_lines
from torch_ir.analysis.memory_plan.plan_text import plan_text
from torch_ir.draw import memory_picture
from torch_ir.entries import feeds_of
from torch_ir.errors import SerializationError, TorchIRError
from torch_ir.explorer import explore
from torch_ir.ir import IR
from torch_ir.llm import cache_attention, cache_map, entry_map, to_cache_form
from torch_ir.passes import optimize
from torch_ir.quantization.recipe import Recipe
from torch_ir.safety import deserialize_ir, validate_ir
from torch_ir.simulators import to_chakra, to_scale_sim, to_timeloop, to_zigzag

SECONDS = 10  # of computing, for graphs of at most 20,000 characters
_FOLDER = new_folder()
_RANDOM = 8  # random graphs among the seeds


def seeds() -> list[bytes]:
    """Return texts of valid graphs, and seeds of random graphs."""
    drawn = [random_ir(2 * number, typed=True) for number in range(_RANDOM)]
    texts = [without_digest(ir.to_json()) for ir in (mlp(), everything(), layers(6), *drawn)]
    return [
        *(text.encode() for text in dict.fromkeys(texts)),
        *(f"seed {number}".encode() for number in range(_RANDOM)),
    ]


def graph_of(data: bytes) -> IR | None:
    """Return the graph encoded by an input; None for text that the reader refuses."""
    if data.lstrip()[:1] != b"{":
        number = zlib.crc32(data)
        ir = random_ir(number, typed=number % 4 > 1)
        if number % 4 == 1:
            _make_unverifiable(ir)
        data = without_digest(ir.to_json()).encode()
    try:
        return deserialize_ir(data.decode())
    except (SerializationError, UnicodeDecodeError):
        return None


def _make_unverifiable(ir: IR) -> None:
    """Give tensors without values a dtype that has no shape rules, so that any arguments of an operator pass."""
    for tensor in ir.tensors():
        if tensor.param is None:
            tensor.dtype = "qint8"
    for body in ir.functions.values():
        _make_unverifiable(body)


def _verb(act: Callable[[IR], object]) -> Target:
    def check(data: bytes) -> None:
        ir = graph_of(data)
        if ir is None:
            return
        started = time.process_time()
        with suppress(TorchIRError):
            validate_ir(ir)  # as every command does with a file
            act(ir)
        spent = time.process_time() - started
        assert spent < SECONDS, f"{spent:.1f} s for {len(ir.nodes)} nodes"

    return Target(seeds, check)


def _check(ir: IR) -> None:
    ir.check()


def _cost(ir: IR) -> None:
    str(cost(ir))
    for by in ("module", "op", "node"):
        str(cost_report(ir, by))


def _diff(ir: IR) -> None:
    """Diff against itself, against its cleaned form, and against another graph."""
    assert diff(ir, ir.clone()).is_equal
    for other in (optimize(ir, "clean")[0], random_ir(2 * len(ir.nodes), typed=True)):
        "\n".join(diff_lines(diff(ir, other)))
        str(diff(other, ir))


def _optimize(ir: IR) -> None:
    text = ir.to_json()
    for level in ("clean", "full"):
        better = optimize(ir, level)[0].check()
        assert IR.from_json(better.to_json()).to_json() == better.to_json()
    assert ir.to_json() == text, "the given graph was changed"


def _explore(ir: IR) -> None:
    explore(ir, Path(_FOLDER.name) / "page.html")


def _memory(ir: IR) -> None:
    """Plan the memory, and read the plan from the file."""
    sizes = dict.fromkeys(ir.symbols, 3)
    ir.extensions[MemoryPlan.KEY] = plan_memory(ir, sizes=sizes).to_dict()
    plan = memory_plan_of(IR.from_json(ir.to_json()))
    assert plan is not None
    plan_text(plan, ir.model_name)
    memory_picture(plan)


def _simulate(ir: IR) -> None:
    """Write the files of every simulator, and predict times on a calibrated device."""
    folder, sizes = Path(_FOLDER.name), dict.fromkeys(ir.symbols, 3)
    for write in (to_chakra, to_timeloop, to_zigzag, to_scale_sim, partial(to_scale_sim, gemm=True)):
        with suppress(TorchIRError):
            write(ir, folder / "written", sizes=sizes)
        _remove(folder / "written")
    device = device_of(DEVICE)
    for mode in MODES:
        str(cost_report(ir, "node", sizes=sizes, device=device, mode=mode))


def _distribute(ir: IR) -> None:
    """Search for a plan, shard by it, and split."""
    with suppress(TorchIRError):
        split(ir, 2, anywhere=True)
    find_plan(ir, Cluster(2, 1e9), sizes=dict.fromkeys(ir.symbols, 4)).best.shard(ir).check()


def _entries(ir: IR) -> None:
    """What is read of files with several entry points, and of language models."""
    for read in (feeds_of, cache_map, entry_map, optimizer_state, cache_attention, to_cache_form, Recipe.from_ir):
        with suppress(TorchIRError):
            read(ir)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


_ACTS = (_check, _cost, _diff, _optimize, _explore, _memory, _simulate, _distribute, _entries)
VERBS = {act.__name__.removeprefix("_"): _verb(act) for act in _ACTS}
