"""Fast capture is byte-identical to torch.export, or reports what it does not support."""

import gc
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import catalogue
from catalogue import Entry
from tests.process_state import new_objects_alone
from tests.proof import module, quiet, to_meta, verdict
from tests.samples import sampled
from torch_ir import IR, CaptureWarning, extract_ir
from torch_ir.capture.fast import rule_answers as inference
from torch_ir.capture.fast import shape_tensors as ghosts
from torch_ir.capture.fast.fast_recording import record_fast
from torch_ir.capture.fast.shape_tensors import NotCoveredError
from torch_ir.capture.state.input_questions import input_questions

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
# Models of the catalogue that only torch.export captures, and the reason in the log.
NOT_COVERED = {
    "constants": "a meta tensor that is neither a weight nor an input",
    "control_flow": "cond is a higher-order operator",
    "while_loop": "while_loop is a higher-order operator",
}
COVERED = [entry for entry in catalogue.entries() if entry.name not in NOT_COVERED]


def same_bytes(model: nn.Module, *inputs: Any, kwargs: Mapping[str, Any] | None = None) -> IR:
    """The graph of a quick recording, after it turned out to be that of torch.export."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)  # training mode, and values lost on meta
        exact = extract_ir(model, inputs, kwargs=kwargs, strict=False, capture="export")
    with input_questions() as questions:
        quick = record_fast(model, inputs, dict(kwargs or {}))
    questions.guard(quick, (inputs, dict(kwargs or {})))
    quick.model_name = exact.model_name
    assert quick.to_json() == exact.to_json()
    return quick


def _on_meta(entry: Entry) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        model = entry.build()
    args, kwargs = to_meta((entry.inputs(), entry.kwargs()))
    return model, args, kwargs


@pytest.mark.parametrize("entry", sampled(COVERED, 20, lambda entry: entry.name))
def test_catalogue(entry: Entry) -> None:
    """Each model on meta has the bytes of torch.export."""
    model, args, kwargs = _on_meta(entry)
    same_bytes(model, *args, kwargs=kwargs)


@pytest.mark.parametrize("name", NOT_COVERED)
def test_what_of_the_catalogue_is_not_covered(name: str) -> None:
    model, args, kwargs = _on_meta(catalogue.find(name))
    with pytest.raises(NotCoveredError, match=NOT_COVERED[name]):
        record_fast(model, args, kwargs)


# -- what is covered --------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Layers of every plain kind, one called twice and one whose weight is another's."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.twice.weight
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.rnn = nn.GRU(4, 3, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tied(self.twice(self.twice(x)).relu_())
        return self.rnn(self.drop(self.norm(x))[None])[0]


class Nested(nn.Module):
    """Inputs and outputs in containers, defaults, keywords, and non-tensor arguments."""

    def forward(self, pair: Any, table: Any, factor: float = 2.0, *, mask: Any = None, mode: str = "plain") -> Any:
        a, (b, number) = pair
        first = table["first"] * factor + number
        second = first if mask is None else first.masked_fill(mask, 0.0)
        return {"sum": a + b, "rest": [second, (mode, None, 3)]}


def literals(self: Any, x: Tensor) -> Any:
    torch.tensor([5.0])  # unused
    scale = torch.tensor(2.0)
    if scale.item() > 1:  # which the model itself has written down
        x = x * scale
    steps = torch.arange(4) + torch.tensor([0, 1, 2, 3])
    return x + torch.tensor([1.0, 2.0, 3.0, 4.0]) * self.plain + steps, scale


def attributes(self: Any, x: Tensor) -> Any:
    a = F.pad(x, (1, 1), value=-0.0) + 0.0
    b = x.masked_fill(x > 1, float("-inf")).nan_to_num(nan=float("nan"), posinf=float("inf"))
    c = torch.add(x, True) + torch.add(x, 1) + torch.add(x, 1.0)
    return a, b, c, x.pow(2), x.pow(2.0), torch.full((2,), True), torch.full((2,), 1), torch.full((2,), 1.0)


def several(self: Any, x: Tensor) -> Any:
    values, places = x.max(1)
    _, mean, _ = torch.native_layer_norm(x, [4], None, None, 1e-5)
    gradient, none, _ = torch.ops.aten.native_layer_norm_backward(
        x, x, [4], mean, mean, None, None, [True, False, False]
    )
    return values, places, x.split([1, 3], 1), x.unbind(0)[1], gradient, none


def bits(self: Any, x: Tensor) -> Any:
    whole = torch.complex(x, x)
    return x.view(torch.int32) & 7, x.to(torch.float64).view(torch.int64), torch.view_as_real(whole * 2j), whole.abs()


def chance(self: Any, x: Tensor) -> Any:
    return torch.rand_like(x) + torch.randn(2, 4), F.dropout(x, 0.1, True), F.dropout(x, 0.1, False), x.bernoulli()


def unread(self: Any, x: Tensor) -> Any:
    y = torch.tensor([1.0]).clone().detach()
    x.sin()
    return x.detach().cos() + y.detach_()


def remembered(self: Any, x: Tensor) -> Any:
    """A buffer is written to; an attribute and a container are changed, too."""
    self.count.add_(1)
    self.window[:, 1:] = x[:, :3]
    self.window.mul_(2)
    self.latest, self.seen["x"] = x, x
    return self.window.sum() + self.count


def shapes(self: Any, x: Tensor) -> Any:
    """Queries of sizes, dtypes and modes work."""
    if x.shape[0] != 2 or x.dtype != torch.float32 or x.requires_grad or self.training or not x.numel():
        raise ValueError
    return x.new_zeros(len(x), x.size(1)).add(x.dim()), torch.empty_like(x).fill_(x.stride(0)), x.to(x.device)


class Twin(nn.Module):
    """One class twice, with plain tensors and buffers of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.register_buffer("rows", torch.arange(4.0), persistent=False)
        self.register_buffer("none", None)
        self.plain = torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) + self.rows * self.plain
        return x


class Clashing(nn.Module):
    """Inputs, weights and operators with the same names."""

    def __init__(self) -> None:
        super().__init__()
        self.add = nn.Linear(4, 4)
        self.Add = nn.Linear(4, 4)

    def forward(self, add: Tensor, p_add_weight: Tensor, output: Tensor, mul: Tensor) -> Any:
        return self.Add(self.add(add) + p_add_weight).add(output) * mul, [add + 1, add + 2]


COVERED: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "layers": lambda: (Net().eval(), (X,)),
    "layers in training": lambda: (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.LayerNorm(4)).train(), (X,)),
    "lstm with flat weights": lambda: (nn.LSTM(4, 3, proj_size=2).eval(), (X[None], (X[None, :, :2], X[None, :, :3]))),
    "nested": lambda: (Nested().eval(), ((X, (X, 3)), {"first": X, "unread": X})),
    "constants": lambda: (module(literals, plain=torch.ones(4)), (X,)),
    "attributes": lambda: (module(attributes), (X,)),
    "several results": lambda: (module(several), (X,)),
    "bits": lambda: (module(bits), (X,)),
    "chance": lambda: (module(chance), (X,)),
    "unread": lambda: (module(unread), (X,)),
    "state": lambda: (module(remembered, buffers={"count": torch.tensor(0), "window": X.clone()}, seen={}), (X,)),
    "questions": lambda: (module(shapes), (X,)),
    "same class": lambda: (Twin().eval(), (X,)),
    "names": lambda: (Clashing().eval(), (X, X, X, X)),
    "not in rows": lambda: (nn.Linear(2, 2), (X.t().contiguous().t()[:, :2],)),
    "empty": lambda: (nn.Linear(4, 2), (X[:0],)),
    "half": lambda: (nn.Linear(4, 2).to(torch.bfloat16), (X.to(torch.bfloat16),)),
}


@pytest.mark.parametrize("name", COVERED)
def test_same_bytes(name: str) -> None:
    model, inputs = COVERED[name]()
    ir = same_bytes(model, *inputs)
    if name not in ("chance", "layers in training"):  # which differ from run to run
        report = verdict(ir, model, *inputs)
        assert report.is_valid, report


def test_keywords_and_defaults() -> None:
    """Keywords in any order, and those that are left out."""
    table = {"first": X}
    for kwargs in ({"mask": X > 0, "factor": 3}, {"mode": "other", "table": table}, {"table": table, "mask": None}):
        args = ((X, (X, 1.5)),) if "table" in kwargs else ((X, (X, 1.5)), table)
        same_bytes(Nested().eval(), *args, kwargs=kwargs)


def test_default_dtype() -> None:
    """Shape results cached under one default dtype are not used under another."""
    model = module(lambda self, x: x + torch.zeros(4) + torch.arange(0, 1, 0.25))
    before = same_bytes(model, X)
    torch.set_default_dtype(torch.float64)
    try:
        after = same_bytes(model, X)
    finally:
        torch.set_default_dtype(torch.float32)
    assert [ir.graph_outputs[0].dtype for ir in (before, after)] == ["float32", "float64"]


def test_custom_operators_are_asked_anew() -> None:
    """An operator may get another shape rule between two captures."""
    for name, size in (("narrow", 1), ("wide", 3)):
        with torch.library._scoped_library("fast_capture", "DEF") as library:
            library.define("repeat(Tensor x) -> Tensor")
            library.impl("repeat", lambda x, size=size: torch.cat([x] * size), "CompositeExplicitAutograd")
            ir = same_bytes(module(lambda self, x: torch.ops.fast_capture.repeat(x) + 1), X)
        assert ir.graph_outputs[0].shape == (2 * size, 4), name


# -- what is not ------------------------------------------------------------------------------------------------------


def in_a_thread(self: Any, x: Tensor) -> Any:
    results: list[Tensor] = []
    thread = threading.Thread(target=lambda: results.append(x * 2))
    thread.start()
    thread.join()
    return x + len(results)


class Scaled(Tensor):
    """A tensor subclass."""


def _graph_of_fx() -> nn.Module:
    return torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU())).eval()


def _subclass() -> nn.Module:
    model = nn.Linear(4, 2).eval()
    model.weight = nn.Parameter(model.weight.detach().as_subclass(Scaled), requires_grad=False)
    return model


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "size from data": (lambda: module(lambda self, x: x[x > 0].sum()), "depends on the data"),
    "numpy": (lambda: module(lambda self, x: x + torch.from_numpy(x.numpy() * 2)), "the values of a tensor"),
    "address": (lambda: module(lambda self, x: x + bool(x.data_ptr())), "the memory of a tensor"),
    "storage": (lambda: module(lambda self, x: x + x.untyped_storage().nbytes()), "the memory of a tensor"),
    "thread": (lambda: module(in_a_thread), "where the recorder cannot see it"),
    "vmap": (lambda: module(lambda self, x: torch.vmap(torch.sum)(x)), "torch.vmap"),
    "grad": (lambda: module(lambda self, x: torch.func.grad(lambda y: y.pow(2).sum())(x)), "torch.func.grad"),
    "jvp": (lambda: module(lambda self, x: torch.func.jvp(torch.sin, (x,), (x,))[1]), "torch.func.jvp"),
    "graph of fx": (_graph_of_fx, "a torch.fx GraphModule"),
    "tensor of a class": (_subclass, "'weight' is a Scaled|is a Parameter"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    """The reason is logged, and the fallback captures the model exactly."""
    build, reason = REFUSED[name]
    with pytest.raises(NotCoveredError, match=reason):
        record_fast(build(), (X,), {})
    model = build()
    with quiet():
        ir = extract_ir(model, (X,), strict=False)
        report = verdict(ir, model, X)
    assert report.is_valid, report


def swallowed(self: Any, x: Tensor) -> Any:
    try:
        return x * x.untyped_storage().nbytes()
    except Exception:
        return x


def test_what_forward_catches_is_seen() -> None:
    """If the model catches the refusal, its graph would be that of another path."""
    with pytest.raises(NotCoveredError, match="the memory of a tensor"):
        record_fast(module(swallowed), (X,), {})


def test_inputs_of_another_kind_are_refused() -> None:
    """A sparse tensor, a set, a result of a class that the IR cannot rebuild."""
    for given, reason in ((X.to_sparse(), "layout torch.sparse_coo"), ({1, 2}, "is a set")):
        with pytest.raises(NotCoveredError, match=reason):
            record_fast(module(lambda self, x: torch.ones(2)), (given,), {})
    with pytest.raises(NotCoveredError, match="the model returns a object"):
        record_fast(module(lambda self, x: object()), (X,), {})


# -- afterwards -------------------------------------------------------------------------------------------------------


def _state(model: nn.Module) -> list[Any]:
    """Everything that a capture swaps for a while, by identity."""
    tables = [(id(value), key) for each in model.modules() for key, value in vars(each).items()]
    tensors = [
        (key, id(tensor), tensor._version) for key, tensor in [*model.named_parameters(), *model.named_buffers()]
    ]
    methods = [(name, getattr(Tensor, name)) for name in dir(Tensor) if name not in ("__abstractmethods__", "__dict__")]
    return [
        *(tables, tensors, [item for item in methods if callable(item[1])], dict(model.seen), list(model.all)),
        *(nn.Module.__call__, torch.autocast.__enter__, torch.vmap, torch.func.grad, torch.get_default_dtype()),
        *(torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.compiler.is_compiling()),
        *(
            torch.utils._python_dispatch._get_current_dispatch_mode(),
            torch.get_default_device(),
            torch._C._len_torch_function_stack(),
        ),
    ]


@pytest.mark.parametrize("ending", ["success", "refusal", "error"])
def test_everything_is_as_it_was(ending: str) -> None:
    """Parameters, buffers, attributes, containers, torch's methods and modes are always restored."""

    def forward(self: Any, x: Tensor) -> Any:
        self.seen["x"] = self.latest = self.linear(x)
        self.all.append(x)
        self.state.add_(1)
        self.linear.extra = x
        if ending == "refusal":
            x.untyped_storage()
        if ending == "error":
            raise KeyError("on purpose")
        return self.latest

    model = module(forward, linear=nn.Linear(4, 4), seen={}, all=[], latest=None, buffers={"state": torch.zeros(4)})
    before = _state(model)
    if ending == "success":
        record_fast(model, (X,), {})
    else:
        with pytest.raises(NotCoveredError, match="the memory of a tensor" if ending == "refusal" else "on purpose"):
            record_fast(model, (X,), {})
    assert _state(model) == before
    assert model.state.tolist() == [0.0] * 4


def test_capture_says_which_road(caplog: pytest.LogCaptureFixture) -> None:
    """The reason for not using fast capture is logged."""
    with caplog.at_level("INFO", logger="torch_ir.capture"):
        extract_ir(_graph_of_fx(), (X,), strict=False)
    assert "is not recorded fast: a torch.fx GraphModule" in caplog.text


def test_what_is_remembered_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules are forgotten when they are too many, forms when nothing has them; the graph is the same."""
    wanted = record_fast(Net().eval(), (X,), {}).to_json()
    monkeypatch.setattr(inference, "_MOST_KNOWN", 3)
    monkeypatch.setattr(inference.Inference, "known", {})
    with new_objects_alone():
        assert record_fast(Net().eval(), (X,), {}).to_json() == wanted
        assert len(inference.Inference.known) <= 3
        for size in range(700, 720):
            record_fast(nn.Linear(4, 4).eval(), (torch.empty(size, 4),), {})
        inference.Inference.known.clear()
        gc.collect()
    fixed = [form.shape for form in ghosts._forms.values() if not form.is_open]
    assert not [shape for shape in fixed if 700 <= max(shape, default=0) < 720]
