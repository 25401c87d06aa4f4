"""Models captured under one setting of the process, or for one layout of the inputs, and run under another.

The oracle is the model itself, built afresh and called in plain eager: under the settings of the capture, since a graph
keeps those, and on a tensor that lies as the one that the graph is given. A graph may refuse; it may not be wrong.
"""

import itertools
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_ir import IR, ExecutionError, IRExecutor, TorchIRError, extract_ir

ROADS = ("auto", "export", "record")

# -- layouts ---------------------------------------------------------------------------------------------------------

# Operators that return a view for some layouts, a copy for others, or the tensor itself.
OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "contiguous channels last": lambda x: x[None].contiguous(memory_format=torch.channels_last),
    "reshape": lambda x: x.reshape(-1),
    "reshape of rows": lambda x: x.reshape(2, 12),
    "flatten": lambda x: x.flatten(1),
    "ravel": lambda x: x.ravel(),
    "reshape_as": lambda x: x.reshape_as(torch.zeros(6, 4)),
    "to": lambda x: x.to(torch.float32),
    "to channels last": lambda x: x[None].to(memory_format=torch.channels_last),
    "type_as": lambda x: x.type_as(torch.zeros(1)),
    "float": lambda x: x.float(),
    "view_as_real": lambda x: torch.view_as_real(torch.complex(x, x)),
    "transpose and contiguous": lambda x: x.transpose(0, 2).contiguous(),
    "reshape twice": lambda x: x.reshape(6, 4).reshape(-1),
    "slice of reshape": lambda x: x.reshape(-1)[3:],
    "einsum": lambda x: torch.einsum("ijk->kij", x),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[1, 1], indexing="ij")[0],
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, torch.zeros(1))[0],
    "unsafe_chunk": lambda x: torch.unsafe_chunk(x, 2)[0],
    "atleast_3d": lambda x: torch.atleast_3d(x),
    "clone": lambda x: x.clone(),
}

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.clone(),
    "transposed": lambda x: x.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    "every second": lambda x: torch.stack([x, x], -1).flatten(2)[..., ::2],
    "part of a batch": lambda x: torch.cat([x, x])[2:],
}


class Writing(nn.Module):
    """Write to an operator's result or to its operand, and return the other."""

    def __init__(self, operator: Callable[[Tensor], Tensor], pattern: str) -> None:
        super().__init__()
        self.operator, self.pattern = operator, pattern

    def forward(self, x: Tensor) -> Tensor:
        if "input" not in self.pattern:
            x = x * 1
        y = self.operator(x)
        if self.pattern.startswith("result"):
            y.mul_(2)
            return x + 1
        if self.pattern == "source":
            x.mul_(2)
        else:
            y = y.clamp(min=0)
            y.mul_(2)
        return y + 1


PATTERNS = ("result", "result of the input", "source", "own")


class Layout(NamedTuple):
    """One model, captured for one layout and run on others."""

    operator: str
    pattern: str
    captured: str
    road: str


def layout_cases() -> list[Layout]:
    """Every layout with the default capture; other captures return the same graph, or are tried on one layout."""
    usual = itertools.product(OPERATORS, PATTERNS, LAYOUTS, ROADS[:1])
    others = itertools.product(OPERATORS, PATTERNS, ["contiguous"], ROADS[1:])
    return [Layout(*case) for case in (*usual, *others)]


def try_layout(case: Layout) -> Iterator[tuple[str, str]]:
    """Run on every layout: (layout, same, refused or wrong)."""
    values = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    ir = captured(Writing(OPERATORS[case.operator], case.pattern), LAYOUTS[case.captured](values), case.road)
    for name, lay_out in LAYOUTS.items():
        yield name, "refused at capture" if ir is None else _run_on(ir, case, lay_out(values), lay_out(values))


def _run_on(ir: IR, case: Layout, given: Tensor, own: Tensor) -> str:
    expected = Writing(OPERATORS[case.operator], case.pattern).eval()(own)
    try:
        outcome = IRExecutor(ir, {}).run([given])
    except ExecutionError:
        return "refused when run"
    after = next(iter(outcome.mutations.values()), given)
    return "same" if torch.equal(outcome.outputs[0], expected) and torch.equal(after, own) else "wrong"


# -- settings --------------------------------------------------------------------------------------------------------


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def _matmul_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "as torch begins": nullcontext,
    "default dtype float64": lambda: _default_dtype(torch.float64),
    "default dtype bfloat16": lambda: _default_dtype(torch.bfloat16),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "no grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "deterministic": _deterministic,
    "matmul precision": _matmul_precision,
    "default device meta": lambda: torch.device("meta"),
}


class Factories(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return x + torch.zeros(4), torch.full((2,), 0.1), torch.linspace(0, 1, 3), torch.eye(2), torch.arange(0.5, 3.0)


class Promotions(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        n = torch.arange(1, 5)
        return x + n / 3, n * 0.1, n.sqrt(), torch.where(n > 2, 0.1, 0.2), n.bool().logsumexp(0), (n > 2).sum() / 3


class Drawing(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return x + torch.rand(4), torch.randn(3), torch.bernoulli(x.sigmoid())


class Literal(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return x * torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor(3) / 7, torch.scalar_tensor(0.1)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.conv = nn.Linear(4, 4), nn.LayerNorm(4), nn.Conv1d(2, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.norm(self.linear(x)).relu_()
        return self.conv(y), torch.softmax(y @ y.mT, -1)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.count.add_(1)
        return (x * self.count, F.one_hot(torch.arange(3)) / 3)


MODELS: dict[str, Callable[[], nn.Module]] = {
    model.__name__.lower(): model for model in (Factories, Promotions, Drawing, Literal, Layers, Counting)
}
_BUILT_ELSEWHERE = "default device meta"  # where eager has no values


class Setting(NamedTuple):
    """One model, captured under one setting and run under others."""

    model: str
    captured: str
    road: str


def setting_cases() -> list[Setting]:
    return [Setting(*case) for case in itertools.product(MODELS, MODES, ROADS)]


def try_setting(case: Setting) -> Iterator[tuple[str, str]]:
    """Run under every setting: (setting, same, refused or wrong)."""
    x = torch.linspace(-1, 1, 4)[None].expand(2, 4).contiguous()
    model, fresh = _built(case.model), _built(case.model)
    with MODES[case.captured]():
        ir = captured(model, x, case.road)
    eager = nullcontext if case.captured == _BUILT_ELSEWHERE else MODES[case.captured]
    torch.manual_seed(1)
    with eager(), torch.no_grad():
        expected = fresh(x)
    for name, mode in MODES.items():
        yield name, "refused at capture" if ir is None else _run_under(ir, mode, model, x, expected)


def _built(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().eval()


def _run_under(ir: IR, mode: Callable[[], Any], model: nn.Module, x: Tensor, expected: Sequence[Tensor]) -> str:
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    torch.manual_seed(1)
    try:
        with mode():
            outputs = IRExecutor(ir, weights)(x)
    except ExecutionError:
        return "refused when run"
    return "same" if all(map(_is_same, outputs, expected)) and len(outputs) == len(expected) else "wrong"


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)


# -- both ------------------------------------------------------------------------------------------------------------


def captured(model: nn.Module, x: Tensor, road: str) -> IR | None:
    """The graph, saved and loaded, or None where capture refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return IR.from_json(extract_ir(model.eval(), (x,), strict=False, capture=road).to_json())
        except TorchIRError:
            return None


def outcomes(cases: Sequence[Layout | Setting]) -> tuple[Counter[str], list[Any]]:
    """How often a run was the same, refused or wrong, and the cases that are wrong."""
    counts: Counter[str] = Counter()
    wrong = []
    for case in cases:
        for place, outcome in try_layout(case) if isinstance(case, Layout) else try_setting(case):
            counts[outcome] += 1
            if outcome == "wrong":
                wrong.append((case, place))
    return counts, wrong


def sample(cases: Sequence[Any], count: int, seed: int) -> list[Any]:
    return random.Random(seed).sample(list(cases), count)


def measure() -> Mapping[str, int]:
    """Every case: the figures of docs/reliability.md."""
    layouts, settings = outcomes(layout_cases())[0], outcomes(setting_cases())[0]
    rows: dict[str, int] = {
        "operators that may copy": len(OPERATORS),
        "graphs captured for a layout": len(layout_cases()),
        "runs on a layout": sum(layouts.values()),
    }
    told = ("same", "refused at capture", "refused when run", "wrong")
    rows |= {f"layouts: {name}": layouts[name] for name in told}
    rows |= {
        "settings of the process": len(MODES),
        "graphs captured under a setting": len(setting_cases()),
        "runs under a setting": sum(settings.values()),
    }
    return rows | {f"settings: {name}": settings[name] for name in told}
