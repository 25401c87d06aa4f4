"""A process that loads, checks and runs many files keeps its state and its memory.

`measure()` gives the figures of the full sweep.
"""

import gc
import logging
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import nn

from tests.graphs import everything, mlp, tensor
from tests.process_state import differences, living_objects, new_objects_alone, process_state, resident_bytes
from torch_ir import IR, IRExecutor, OpNode, execute_ir, extract_ir, ir_to_mermaid, liveness, load_ir
from torch_ir import random_weights as weights_for
from torch_ir.analysis.shapes import inference as shapes
from torch_ir.analysis.shapes.inference import Shapes, wrong_shapes
from torch_ir.ir.graph.garbage_collection import uncollected
from torch_ir.ops.forbidden import reaches
from torch_ir.ops.quiet_loggers import silence
from torch_ir.ops.schema import operator_names

CYCLES, SOME_CYCLES = 1000, 24
THREADS, RUNS = 8, 25
REMEMBERED = 50  # answers of torch about shapes; few, so that forgetting is part of every cycle
MEGABYTE = 1 << 20


class Counting(nn.Module):
    """Changes a buffer in every run."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.fc(x).softmax(-1) + self.calls


def in_place(*, on_input: bool = False) -> IR:
    """Writes to a value, as a file that is not in the functional form does."""
    x, relu, out = tensor("x", 2, 3), tensor("relu", 2, 3), tensor("add_", 2, 3)
    first = OpNode("relu", "aten.relu.default", [x], [relu], args=["self"])
    target = x if on_input else relu
    add = OpNode("add_", "aten.add_.Scalar", [target], [out], {"other": 1, "alpha": 1}, args=["self"])
    return IR([first, add], [x], [out])


def sized(size: int) -> IR:
    """A graph like no other."""
    x, y, z = tensor("x", 2, size), tensor("relu", 2, size), tensor("cat", 4, size)
    relu = OpNode("relu", "aten.relu.default", [x], [y], args=["self"])
    cat = OpNode("cat", "aten.cat.default", [x, y], [z], {"dim": 0}, args=["tensors.0", "tensors.1"])
    return IR([relu, cat], [x], [z], model_name=f"Sized{size}")


def dynamic() -> IR:
    """Accepts any number of rows."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    sizes = ({0: torch.export.Dim("batch")},)
    return extract_ir(model, (torch.empty(2, 4),), dynamic_shapes=sizes, strict=False)


def write_files(folder: Path) -> list[Path]:
    graphs = [mlp(), in_place(), extract_ir(Counting().eval(), (torch.empty(2, 4),), strict=False), dynamic()]
    paths = [folder / f"{index}.json" for index in range(len(graphs))]
    for graph, path in zip(graphs, paths, strict=True):
        graph.save(path)
    return paths


def inputs_of(ir: IR) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.rand([dim if isinstance(dim, int) else 2 for dim in given.shape], generator=generator)
        for given in ir.graph_inputs
    ]


def cycle(path: Path) -> list[torch.Tensor]:
    """Load, check, print, analyse and run one file."""
    ir = load_ir(path)
    assert not list(wrong_shapes(ir))
    str(ir), ir_to_mermaid(ir), liveness(ir)
    return list(execute_ir(ir, inputs_of(ir), weights_for(ir)))


def cycles(paths: list[Path], count: int) -> None:
    """So many cycles over the files, and over one more that is another each time."""
    other = paths[0].with_name("other.json")
    for index in range(count):
        sized(index + 1).save(other)
        cycle(paths[index % len(paths)])
        cycle(other)


def grown(paths: list[Path], count: int) -> tuple[int, int]:
    """By how many bytes and objects the process grows in so many cycles, after some to warm up."""
    cycles(paths, count // 4)
    objects, memory = living_objects(), resident_bytes()
    cycles(paths, count)
    return resident_bytes() - memory, living_objects() - objects


@pytest.mark.parametrize("count", [SOME_CYCLES, pytest.param(CYCLES, marks=pytest.mark.slow)])
def test_many_cycles_leave_the_process_as_it_was(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """State is identical, and memory is flat: caches of graphs are bounded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shapes, "_MOST_KNOWN", REMEMBERED)
    paths = write_files(tmp_path)
    cycles(paths, 8)
    with new_objects_alone():
        before = process_state()
        memory, objects = grown(paths, count)
        assert differences(before, process_state()) == {}
    assert len(Shapes.known) <= REMEMBERED
    assert memory < 64 * MEGABYTE
    assert objects < 10_000  # expressions and sizes that are remembered, up to a number


def test_what_a_caller_gives_is_not_written_to() -> None:
    """Tensors and weights, even where a graph writes in place or names an `out` variant."""
    x, y, made = tensor("x", 2), tensor("y", 2), tensor("add", 2)
    out = IR(
        [OpNode("add", "aten.add.out", [x, x, y], [made], {"alpha": 1}, args=["self", "other", "out"])], [x, y], [made]
    )
    for ir in (out, in_place(on_input=True), mlp(), extract_ir(Counting().eval(), (torch.empty(2, 4),), strict=False)):
        given, weights = inputs_of(ir), weights_for(ir)
        kept, held = [value.clone() for value in given], {key: value.clone() for key, value in weights.items()}
        versions = [value._version for value in (*given, *weights.values())]
        execute_ir(ir, given, weights)
        assert all(map(torch.equal, given, kept))
        assert all(torch.equal(weights[key], held[key]) for key in held)
        assert [value._version for value in (*given, *weights.values())] == versions


def test_a_name_in_a_file_leaves_nothing_in_torch() -> None:
    """`getattr(torch.ops, name)` would create a namespace for every name in a file."""
    with new_objects_alone():
        before = process_state()
        ir = mlp()
        for name in ("nobody.knows.this", "aten.nobody.default", "higher_order.nobody", "_ops.aten.add"):
            ir.nodes[0].op_type = name
            list(wrong_shapes(ir))
            assert reaches(name) == ""
        assert differences(before, process_state()) == {}


@pytest.mark.parametrize("runs", [3, pytest.param(RUNS, marks=pytest.mark.slow)])
def test_threads_agree_with_one_alone(runs: int, tmp_path: Path) -> None:
    """Eight threads load, check and run at once; results equal those of one thread, and process state is unchanged."""
    paths = write_files(tmp_path)
    with new_objects_alone():
        assert threads_disagreeing(paths, runs) == 0


def threads_disagreeing(paths: list[Path], runs: int) -> int:
    """How many results of threads that work at once are not those of one alone; none may change the process."""
    alone = {path: cycle(path) for path in paths}
    before = process_state()
    Shapes.known.clear()

    def work(number: int) -> int:
        wrong = 0
        for index in range(runs):
            path = paths[(number + index) % len(paths)]
            wrong += not all(map(torch.equal, cycle(path), alone[path]))
        return wrong

    with ThreadPoolExecutor(THREADS) as pool:
        wrong = sum(pool.map(work, range(THREADS)))
    assert differences(before, process_state()) == {}
    return wrong


def test_one_executor_may_be_shared() -> None:
    """By threads, if the graph keeps no state: each run has its own values, and its own sizes."""
    ir = dynamic()
    executor = IRExecutor(ir, weights_for(ir))
    inputs = [torch.rand(size, 4) for size in range(1, 33)]
    wanted = [executor.execute((x,))[0] for x in inputs]
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda x: executor.execute((x,))[0], inputs * 10))
    assert all(map(torch.equal, found, wanted * 10))


def test_a_logger_is_silent_while_any_thread_wants_it() -> None:
    """It is enabled again when the last one ends, in any order."""
    logger = logging.getLogger("tests.silenced")
    silent = silence(logger.name)
    silent.__enter__()
    silent.__enter__()
    silent.__exit__(None, None, None)
    assert logger.disabled
    silent.__exit__(None, None, None)
    assert not logger.disabled


def test_collection_of_garbage_is_as_it_was() -> None:
    """Reading suspends it in several threads at once; a thread that disables it, or sets a threshold, is obeyed."""
    text, before = everything().to_json(), _collector()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(IR.from_json, [text] * 40))
    assert _collector() == before
    choices: list[tuple[Callable[[], None], tuple[bool, int]]] = [
        (gc.disable, (False, before[1][0])),
        (lambda: gc.set_threshold(12_345), (True, 12_345)),
    ]
    for choose, chosen in choices:
        try:
            with ThreadPoolExecutor(1) as pool, uncollected():
                with uncollected():
                    assert gc.get_threshold()[0] == 0
                assert gc.get_threshold()[0] == 0
                pool.submit(choose).result()
            assert (gc.isenabled(), gc.get_threshold()[0]) == chosen
            IR.from_json(text)
            assert (gc.isenabled(), gc.get_threshold()[0]) == chosen
        finally:
            gc.enable()
            gc.set_threshold(*before[1])


def _collector() -> tuple[bool, tuple[int, int, int], int]:
    return gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()


def test_no_call_changes_the_collector() -> None:
    """Imports, captures in every way, refusals, files and passes leave it alone, and what the user has frozen."""
    program = """
import gc, itertools, threading
gc.set_threshold(701, 11, 12)
found = lambda: (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0)
expected, freeze, calls = found(), gc.freeze, []
gc.freeze = gc.unfreeze = gc.disable = lambda: calls.append(None)
import torch, torch_ir
from torch import nn

class Fine(nn.Module):
    def forward(self, x):
        return x.relu() + 1

class Branch(Fine):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x

class Stateful(Fine):
    calls = 0
    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls

class Broken(Fine):
    def forward(self, x):
        raise ValueError("broken")

def attempts():
    for model, capture, device in itertools.product(
        (Fine, Branch, Stateful, Broken), ("auto", "export", "record"), ("cpu", "meta")
    ):
        def attempt(model=model(), x=torch.ones(2, device=device)):
            ir = torch_ir.extract_ir(model, (x,), capture=capture, strict=False)
            torch_ir.IR.from_json(torch_ir.optimize(ir)[0].to_json())
        yield attempt
    yield lambda: torch_ir.IR.from_json("{")
    yield lambda: torch_ir.load_ir("missing.json")

def check(expected):
    for attempt in attempts():
        try:
            attempt()
        except (torch_ir.TorchIRError, OSError, ValueError):
            pass
        assert found() == expected, (found(), expected)

check(expected)
thread = threading.Thread(target=check, args=[expected])
thread.start(); thread.join()
freeze()
check(found())
print("unchanged", gc.isenabled(), gc.get_freeze_count() > 10_000, calls)
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["unchanged", "True", "True", "[]"], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_collects_garbage() -> None:
    """Even if it was forked while another thread was reading; a call of the forking thread goes on in the child."""
    before, inside, leave = gc.get_threshold(), threading.Event(), threading.Event()

    def read() -> None:
        with uncollected():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=read)
    thread.start()
    inside.wait(60)
    child = os.fork()
    if not child:
        is_restored = gc.get_threshold() == before
        with uncollected():
            grandchild = os.fork()
            is_suspended = gc.get_threshold()[0] == 0
        if not grandchild:
            os._exit(0 if is_suspended and gc.get_threshold() == before else 1)
        os._exit(0 if is_restored and os.waitpid(grandchild, 0)[1] == 0 else 1)
    leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert gc.get_threshold() == before


def test_garbage_of_many_captures_is_collected() -> None:
    """Each leaves a cyclic graph, with automatic collection as Python decides it."""
    program = """
from torch_ir.ir.graph.garbage_collection import uncollected

class Graph:
    alive = 0

    def __init__(self):
        Graph.alive += 1

    def __del__(self):
        Graph.alive -= 1

most = 0
for _ in range(40):
    with uncollected():
        graph = Graph()
        graph.nodes = [[graph] for _ in range(20_000)]
    most = max(most, Graph.alive)
print(most)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_graph_survives_a_fork(tmp_path: Path) -> None:
    """A forked child reads, checks and prints it; running needs a new process."""
    everything().save(tmp_path / "graph.json")
    ir = IR.load(tmp_path / "graph.json")
    text = ir.to_json()
    child = os.fork()
    if not child:
        os._exit(0 if ir.check().to_json() == text and IR.load(tmp_path / "graph.json").to_json() == text else 1)
    assert os.waitpid(child, 0)[1] == 0


def measure() -> dict[str, int | float | str]:
    """The figures of the full sweep."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "_MOST_KNOWN", REMEMBERED)
        paths = write_files(Path(folder))
        memory, objects = grown(paths, CYCLES)
        disagreeing = threads_disagreeing(paths, RUNS)
    spaces = {name.partition("::")[0] for name in torch._C._dispatch_get_all_op_names()}
    names = [name for space in sorted(spaces) for name in operator_names(space)]
    reaching = Counter(bool(reaches(name)) for name in names)
    return {
        "cycles of load, check and run": CYCLES,
        "resident memory grown by (MB)": round(memory / MEGABYTE, 1),
        "objects grown by": objects,
        "threads at once": THREADS,
        "runs in threads": THREADS * RUNS,
        "runs in threads that disagree with one alone": disagreeing,
        "operators of torch classified": len(names),
        "operators that a graph may name": reaching[False],
        "operators that no graph may name": reaching[True],
    }
