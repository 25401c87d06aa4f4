"""Memory: the live bytes of a step equal those allocated in a run."""

import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import catalogue
from tests.graphs import chain, mlp
from tests.proof import captured, module
from torch_ir import IR, CaptureWarning, GraphError, IRExecutor, extract_ir
from torch_ir.analysis import liveness, schedule
from torch_ir.ir import evaluate
from torch_ir.ir.regroup.functions import outline

SAMPLE = ("bert", "densenet", "gpt", "inception", "lstm", "moe", "resnet18", "static_cache", "unet")
# Kernels that return a result in more memory than its elements need.
WASTEFUL = frozenset(("aten.mse_loss.default", "aten.embedding_bag.padding_idx", "aten.copy.default"))


class Held:
    """The bytes of all storages that live tensors have, but for those that were there before."""

    def __init__(self, before: Any) -> None:
        self.before = {_storage(tensor)[0] for tensor in pytree.tree_leaves(before) if isinstance(tensor, torch.Tensor)}
        self.tensors: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.peak = 0

    def see(self, value: Any) -> int:
        """Track a value until it is freed; return the bytes allocated now."""
        if isinstance(value, torch.Tensor):
            storage, size = _storage(value)
            if storage not in self.before:
                self.tensors[storage] = self.tensors.get(storage, 0) + 1
                self.sizes[storage] = size
                weakref.finalize(value, self._gone, storage)
        held = sum(self.sizes.values())
        self.peak = max(self.peak, held)
        return held

    def _gone(self, storage: int) -> None:
        self.tensors[storage] -= 1
        if not self.tensors[storage]:
            del self.sizes[storage]


def _storage(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage._cdata, storage.nbytes()


class Allocations(TorchDispatchMode):
    """Records every kernel's results, also inside operators that torch decomposes."""

    def __init__(self, held: Held) -> None:
        super().__init__()
        self.held = held

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        pytree.tree_map_only(torch.Tensor, self.held.see, result)
        return result


def prepared(name: str) -> tuple[IR, nn.Module, tuple[Any, ...], dict[str, Any]]:
    entry = catalogue.find(name)
    model, inputs, kwargs = entry.build().eval(), tuple(entry.inputs()), entry.kwargs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        ir = extract_ir(model, inputs, kwargs=kwargs, strict=False)
    return ir, model, inputs, kwargs


def bytes_of_run(ir: IR, weights: Any, inputs: tuple[Any, ...], kwargs: Any) -> dict[str, int]:
    """The bytes that are held right after each node."""
    seen: list[tuple[Any, Any]] = []
    watch: Callable[..., None] = lambda tensor, value, sizes: show(tensor, value)  # noqa: E731
    show: Callable[[Any, Any], None] = lambda tensor, value: seen.append((tensor, value))  # noqa: E731
    executor = IRExecutor(ir, weights, watch=watch)
    held = Held([inputs, kwargs, [value for _, value in seen], list(executor.state.values())])
    found: dict[str, int] = {}

    def note(tensor: Any, value: Any) -> None:
        now = held.see(value)
        if tensor.producer is not None:
            found[tensor.producer.name] = now

    show = note
    executor(*inputs, **kwargs)
    return found


def check_model(name: str) -> None:
    ir, model, inputs, kwargs = prepared(name)
    found = bytes_of_run(ir, model.state_dict(), inputs, kwargs)
    wasted = False
    for step in liveness(ir).steps:
        wasted = wasted or step.node.op_type in WASTEFUL
        if step.node.name in found and not step.inside and not wasted:
            assert step.bytes == found[step.node.name], step.node


@pytest.mark.parametrize("name", SAMPLE)
def test_what_is_alive_is_what_a_run_holds(name: str) -> None:
    """At every node, to the byte."""
    check_model(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [entry.name for entry in catalogue.entries() if entry.name not in SAMPLE])
def test_what_is_alive_in_the_whole_catalogue(name: str) -> None:
    """But after kernels that waste memory, and while bodies of control flow run."""
    check_model(name)


@pytest.mark.parametrize("name", ["densenet", "gpt", "resnet18", "unet"])
def test_the_peak_is_that_of_the_allocations(name: str) -> None:
    """Temporaries of kernels are additional: here at most half of the peak."""
    ir, model, inputs, kwargs = prepared(name)
    executor = IRExecutor(ir, model.state_dict())
    held = Held([inputs, kwargs, list(executor.state.values()), executor._ready])
    with Allocations(held):
        executor(*inputs, **kwargs)
    peak = liveness(ir).peak
    assert isinstance(peak, int)
    assert peak <= held.peak <= 1.5 * peak


# -- rules ------------------------------------------------------------------------------------------------------------


def test_a_tensor_lives_to_its_last_reader() -> None:
    ir = mlp()  # x -> linear -> relu -> linear_1
    memory = liveness(ir)
    assert [(step.node.name, step.bytes) for step in memory.steps] == [("linear", 32), ("relu", 64), ("linear_1", 40)]
    assert [[tensor.name for tensor in step.dies] for step in memory.steps] == [[], ["linear"], ["relu"]]
    assert (memory.peak, memory.inputs, memory.weights, memory.once) == (64, 16, 4 * 58, 0)
    assert memory.at is not None
    assert {tensor.name: size for tensor, size in memory.alive(memory.at).items()} == {"linear": 32, "relu": 32}


def test_a_view_keeps_alive_what_it_shows() -> None:
    """And has no memory itself; one of an input needs none at all."""
    model = module(lambda self, x: (x.view(-1) + 1).view(4, 3)[0] * 2)
    ir = captured(model, torch.randn(3, 4))
    steps = {step.node.name: step for step in liveness(ir).steps}
    assert [step.bytes for step in steps.values()] == [0, 48, 48, 48, 48 + 12]
    assert [tensor.name for tensor in steps["mul"].dies] == ["add"]


def test_outputs_and_new_values_of_buffers_live_to_the_end() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        self.state.copy_(x * 3)
        y = x + 1
        return y, (y * 2).sum().neg()

    ir = captured(module(forward, buffers={"state": torch.zeros(8)}), torch.randn(8))
    kept = {tensor.name for step in liveness(ir).steps for tensor in step.makes} - {
        tensor.name for step in liveness(ir).steps for tensor in step.dies
    }
    assert kept == {tensor.name for tensor in ir.returns.inputs}


def test_what_is_computed_of_weights_is_counted_apart() -> None:
    model = module(lambda self, x: x @ (self.w * 2).t(), w=nn.Parameter(torch.randn(3, 4)))
    memory = liveness(captured(model, torch.randn(2, 4)))
    assert (memory.once, memory.peak, [step.node.name for step in memory.steps]) == (48, 24, ["matmul"])


def test_a_call_needs_what_its_body_needs() -> None:
    """A chain of equal nodes needs two tensors at once, inside a call as outside."""
    ir = chain("aten.relu.default", "aten.neg.default", "aten.abs.default", "aten.exp.default")
    flat = liveness(ir).peak
    outline(ir, ir.nodes[:3], "front")
    memory = liveness(ir)
    assert [(step.node.name, step.inside, step.bytes) for step in memory.steps] == [("abs", 24, 48), ("exp", 0, 48)]
    assert memory.peak == flat == 48


def test_a_call_may_give_what_it_is_given() -> None:
    """A body that returns a view of its input allocates nothing; two results of one memory allocate it once."""

    def forward(self: Any, x: torch.Tensor) -> Any:
        y = x + 1
        z = y.view(-1)
        a, b = (z * 2).split(6)
        return a.sum() + b.sum() + y.sum()

    ir = captured(module(forward), torch.randn(3, 4))
    before = {step.node.name: step.bytes for step in liveness(ir).steps}
    outline(ir, [node for node in ir.nodes if node.name in ("view", "mul", "split")], "middle")
    after = {step.node.name: step.bytes for step in liveness(ir).steps}
    assert all(before[name] == size for name, size in after.items() if name in before)


def test_open_sizes_give_expressions() -> None:
    """The peak is that of the step that needs most at 1024; with sizes, it is the peak at those."""
    model = module(lambda self, x: (x @ x.t()).sum() + (x * 2).exp().sum())
    ir = captured(model, torch.randn(6, 4), dynamic_shapes=({0: Dim("n", max=5000)},))
    memory = liveness(ir)
    assert memory.peak == "4*n*n + 4"
    assert [evaluate(step.bytes, {"n": 2}) for step in memory.steps] == [
        step.bytes for step in liveness(ir, sizes={"n": 2}).steps
    ]
    assert liveness(ir, sizes={"n": 2}).peak == 2 * 2 * 4 * 4 + 4
    with pytest.raises(GraphError, match="n = 9999 is out of range"):
        liveness(ir, sizes={"n": 9999})


def test_no_torch_is_needed() -> None:
    program = (
        "import sys; from torch_ir.analysis import liveness; from tests.graphs import mlp; "
        "assert liveness(mlp()).peak == 64; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# -- schedules --------------------------------------------------------------------------------------------------------


def wide() -> nn.Module:
    """All branches begin before any ends, which is the worst order there is."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        branches = [x.repeat(8) * factor for factor in range(6)]
        return torch.stack([branch.sum() for branch in branches]).sum()

    return module(forward)


def test_a_schedule_needs_less_and_computes_the_same() -> None:
    """The graph is unchanged; with the new order, a run has the predicted peak."""
    model, x = wide(), torch.randn(100)
    ir = captured(model, x)
    order = [node.name for node in ir.nodes]
    plan = schedule(ir)
    assert [node.name for node in ir.nodes] == order
    assert plan.before == liveness(ir).peak
    assert isinstance(plan.peak, int)
    assert isinstance(plan.before, int)
    assert plan.peak < plan.before / 2
    ir.nodes = list(plan.nodes)
    ir.check()
    assert liveness(ir).peak == plan.peak == max(bytes_of_run(ir, {}, (x,), {}).values())
    assert IRExecutor(ir, {})(x).equal(model(x))


def check_schedule(name: str) -> None:
    ir, model, inputs, kwargs = prepared(name)
    plan = schedule(ir)
    assert plan.peak <= plan.before == liveness(ir).peak  # type: ignore[operator]
    assert schedule(ir) == plan
    with torch.random.fork_rng():
        torch.manual_seed(0)
        before = IRExecutor(ir, model.state_dict())(*inputs, **kwargs)
    ir.nodes = list(plan.nodes)
    ir.check()
    assert liveness(ir).peak == plan.peak
    with torch.random.fork_rng():
        torch.manual_seed(0)
        after = IRExecutor(ir, model.state_dict())(*inputs, **kwargs)
    torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["control_flow", "detection_head", "self_attention", "vae"])
def test_a_schedule_is_never_worse(name: str) -> None:
    check_schedule(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [entry.name for entry in catalogue.entries()])
def test_schedules_of_the_whole_catalogue(name: str) -> None:
    check_schedule(name)


def test_a_size_that_the_data_decides_is_there_first() -> None:
    """Nodes that take the size as a number read no tensor that would order them."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        big = torch.cat([x, x, x]) * 2
        found = x[x > 0]
        return torch.ones(found.shape[0]).sum() + big.sum()

    x = torch.tensor([1.0, -1.0, 2.0])
    model = module(forward)
    ir = captured(model, x)
    ir.nodes = list(schedule(ir).nodes)
    assert IRExecutor(ir, {})(x).equal(model(x))
