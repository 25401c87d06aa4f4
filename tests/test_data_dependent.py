"""Data-dependent sizes and numbers."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from tests.proof import agrees, captured, module, ops, verdict
from torch_ir import CaptureWarning, ExecutionError, IRExecutor, extract_ir, load_ir, verify_ir_with_state_dict
from torch_ir.analysis.values.prologue import split_prologue


def rows(count: int) -> Tensor:
    return torch.randn(count, 4)


LINEAR = module(lambda self, x: self.layer(x).relu().reshape(-1) * x.shape[0], layer=nn.Linear(4, 4))


def test_data_dependent_sizes() -> None:
    """Data-dependent sizes are symbols too, defined by the producing node."""
    model = module(lambda self, x: (x.nonzero(), x[x > 0] * 2, x.unique(), x[x > 0].shape[0]))
    ir = captured(model, torch.randn(8), dynamic_shapes=({0: Dim("n")},))
    assert ir.symbols["u0"].tensor is ir.node("nonzero").output
    assert ir.node("nonzero").output.shape == ("u0", 1)
    for x in (torch.randn(8), torch.randn(3), -torch.ones(3), torch.ones(3), torch.zeros(1), torch.zeros(0)):
        assert agrees(ir, model, x), x


def test_item() -> None:
    """`item()` returns a number that shapes, attributes and outputs may use."""

    def forward(self: Any, x: Tensor, n: Tensor) -> Any:
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= x.shape[0])
        return x[:k] * k, torch.zeros(k), k, k + 1.5

    model = module(forward)
    ir = captured(model, torch.randn(8), torch.tensor(3), dynamic_shapes=({0: Dim("size")}, None))
    assert ir.symbols["u0"].tensor is ir.node("item").output
    for x, n in [(8, 3), (4, 0), (4, 4), (1, 1)]:
        assert agrees(ir, model, torch.randn(x), torch.tensor(n))


def test_assertions_are_kept_and_checked() -> None:
    """The model's assertions on data are checked in every run; the message uses the graph's names."""

    def forward(self: Any, x: Tensor, n: Tensor) -> Tensor:
        k = n.item()
        torch._check(k <= x.shape[0])
        torch._check(k >= 2)
        return x[:k]

    ir = captured(module(forward), torch.randn(8), torch.tensor(3), dynamic_shapes=({0: Dim("size")}, None))
    assert ops(ir).count("aten._assert_scalar.default") == 2
    assert ir.symbols["u0"].range == "2 <= u0"
    executor = IRExecutor(ir, {})
    with pytest.raises(ExecutionError, match="the graph holds only where u0 <= size"):
        executor(torch.randn(4), torch.tensor(5))
    with pytest.raises(ExecutionError, match="the graph holds only where u0 >= 2"):
        executor(torch.randn(4), torch.tensor(1))
    assert len(executor(torch.randn(4), torch.tensor(2))) == 2


def test_sizes_from_a_tensor_of_indices() -> None:
    """Each part has a separate size; its memory offset is not part of the graph."""
    model = module(lambda self, x, at: torch.tensor_split(x, at))
    ir = captured(model, torch.randn(5, 2), torch.tensor([1, 3]))
    assert agrees(ir, model, torch.randn(5, 2), torch.tensor([2, 4]))
    assert agrees(ir, model, torch.randn(5, 2), torch.tensor([0, 5]))


def test_a_truth_value_is_an_output() -> None:
    """`item` of a bool is returned as a bool, computed from torch's number."""
    model = module(lambda self, x: (x, (x > 0).any().item()))
    ir = captured(model, torch.randn(4))
    for sign in (1.0, -1.0):
        assert IRExecutor(ir, {})(torch.full((4,), sign))[1] == (sign > 0)


def test_python_assertions_on_data() -> None:
    """`assert` on a data-dependent number is kept and checked too."""
    names: dict[str, Any] = {}
    text = "def forward(self, x, n):\n    assert n.max().item() <= x.shape[0]\n    return x * n\n"
    exec(compile(text, "model.py", "exec"), names)  # not here, where pytest rewrites assertions
    model = module(names["forward"])
    ir = captured(model, torch.randn(4), torch.tensor([1, 2, 3, 4]))
    assert agrees(ir, model, torch.randn(4), torch.tensor([4, 4, 1, 1]))
    with pytest.raises(ExecutionError, match="the graph holds only where u0 <= 4"):
        IRExecutor(ir, {})(torch.randn(4), torch.tensor([1, 2, 3, 5]))


def test_sizes_are_outputs() -> None:
    """A size, or a number computed from sizes, may be returned; it is a Python number again."""
    model = module(lambda self, x: {"twice": x.shape[0] * 2, "shape": list(x.shape), "ratio": x.shape[0] / 4, "x": x})
    ir = captured(model, rows(3), dynamic_shapes=({0: Dim("batch")},))
    got = IRExecutor(ir, {})(rows(7))
    assert (got["twice"], got["shape"], got["ratio"]) == (14, [7, 4], 1.75)
    assert type(got["twice"]) is int
    assert verdict(ir, model, rows(7)).is_valid


def test_numbers_as_inputs() -> None:
    """An int input may be dynamic if requested; otherwise it is fixed, and another value is rejected."""
    model = module(lambda self, x, k: x * k + x[:k].sum())
    ir = captured(model, rows(8), 3, dynamic_shapes=(None, Dim.DYNAMIC))
    assert [(tensor.name, tensor.shape, tensor.dtype) for tensor in ir.graph_inputs][1] == ("k", (), "int64")
    for k in (3, 5, 8):
        assert agrees(ir, model, rows(8), k)
    fixed = captured(model, rows(8), 3)
    assert len(fixed.graph_inputs) == 1
    with pytest.raises(ExecutionError, match="is 4, but the graph was captured for 3"):
        IRExecutor(fixed, {})(rows(8), 4)


def test_control_flow_with_dynamic_sizes() -> None:
    """Branches use the sizes of their operands."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * x.shape[0], lambda x: self.layer(x) + x.shape[0], (x,))

    model = module(forward, layer=nn.Linear(4, 4))
    ir = captured(model, rows(3), dynamic_shapes=({0: Dim("batch")},))
    for x in (torch.ones(5, 4), -torch.ones(2, 4), torch.ones(1, 4)):
        assert agrees(ir, model, x)


def test_branches_solve_for_sizes() -> None:
    """A branch with an operand of `2*seq` rows can solve for seq, like the outer graph."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * (x.shape[0] // 2), lambda x: x - x.shape[0] // 2, (x,))

    model = module(forward)
    ir = captured(model, rows(6), dynamic_shapes=({0: 2 * Dim("seq", min=2)},))
    bodies = list(ir.functions.values())
    assert [body.graph_inputs[0].shape[0] for body in bodies] == ["2 * seq", "2 * seq"]
    assert bodies[0].node("mul")["other"] == "seq"
    for x in (torch.ones(4, 4), -torch.ones(10, 4)):
        assert agrees(ir, model, x)


def test_real_samples_give_the_same_graph() -> None:
    """Real and meta example inputs yield the same symbols and constraints."""
    shapes = ({0: Dim("batch", max=32)},)
    from_real = extract_ir(LINEAR, (rows(3),), strict=False, dynamic_shapes=shapes)
    assert from_real.to_json() == captured(LINEAR, rows(3), dynamic_shapes=shapes).to_json()


def test_a_recorded_graph_of_packed_sequences_is_loaded(tmp_path: Path) -> None:
    """The shapes of `_pad_packed_sequence` depend on values, so that nothing is known about them."""

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(4, 6, batch_first=True)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]

    model, given = Packed().eval(), (torch.randn(2, 5, 4), torch.tensor([5, 3]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        ir = extract_ir(model, given, strict=False)
    ir.save(tmp_path / "packed.json")
    loaded = load_ir(tmp_path / "packed.json")
    assert torch.equal(IRExecutor(loaded, model.state_dict())(*given), model(*given))


def test_a_write_beside_a_data_dependent_size(tmp_path: Path) -> None:
    """Of a tensor whose size the data decides, nothing is asked while torch's functionalisation is prepared."""

    class Both(nn.Module):
        def forward(self, x: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
            rows = x[chosen]
            rows[:, 1:] += 1
            square = x.clone()
            square.fill_diagonal_(9.0)  # only torch follows this write
            return rows, square

    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    ir = extract_ir(Both().eval(), (x, torch.tensor([True, False, True])), strict=False)
    ir.save(tmp_path / "both.json")
    executor = IRExecutor(load_ir(tmp_path / "both.json"))
    for chosen in (torch.tensor([True, True, False]), torch.zeros(3, dtype=torch.bool)):
        for result, wanted in zip(executor(x, chosen), Both()(x, chosen), strict=True):
            assert torch.equal(result, wanted)


class SizeOfWeights(nn.Module):
    """A size that a buffer decides is bound where an input is selected, and read where a weight is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([True, False, True, False]))
        self.register_buffer("weight", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:, self.mask] * self.weight[self.mask].exp(), self.mask.nonzero() * 2


def test_a_size_that_weights_decide_is_known_in_a_run() -> None:
    """Nodes with that size are not computed ahead of a run, where it has no value."""
    model, x = SizeOfWeights().eval(), torch.randn(2, 4)
    ir = extract_ir(model, (x,), strict=False)
    (symbol,) = ir.symbols.values()
    assert all(symbol.name not in out.shape for node in split_prologue(ir)[0] for out in node.outputs)
    is_valid, report = verify_ir_with_state_dict(ir, model.state_dict(), model, (x,))
    assert is_valid, report
