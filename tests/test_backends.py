"""The table of back ends: graphs without state, callables with the model's signature, and the choice of one."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torch_ir import IR, ExecutionError, extract_ir, optimize
from torch_ir.backends import Compiled, auto, compile, find_backend, list_backends, register_backend, table
from torch_ir.backends.auto import Auto
from torch_ir.backends.choices import Choice, Choices, key_of
from torch_ir.backends.stateless import stateless
from torch_ir.backends.table import Backend
from torch_ir.cli.dispatch import main
from torch_ir.cli.verb import BACKENDS
from torch_ir.errors import CommandError, MissingExtraError, RegistryError, WeightLoadError
from torch_ir.run.binding import bind
from torch_ir.run.executor import IRExecutor


class Net(nn.Module):
    """A network with everything that back ends are shielded from: state, keywords, nested results, changed inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x: Tensor, *, scale: Tensor) -> dict[str, Any]:
        self.last.copy_(self.last * 0.5 + scale)
        self.calls += 1
        x.add_(1)
        return {"y": torch.relu(self.norm(self.conv(x))) * scale, "state": (self.calls, self.last), "none": None}


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def ir(model: nn.Module) -> IR:
    return extract_ir(model, (torch.randn(2, 3, 8, 8),), kwargs={"scale": torch.tensor(2.0)}, strict=False)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_IR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A separate table of back ends: our executor, and those that a test adds."""
    monkeypatch.setattr(table, "_BACKENDS", {"torch": find_backend("torch")})


# -- graphs ---------------------------------------------------------------------------------------------------------


def test_a_graph_without_state_takes_and_gives_it(ir: IR, model: nn.Module) -> None:
    """Changing buffers come after the inputs, their new values after the outputs; the rest is unchanged."""
    graph, state = stateless(ir)
    assert [tensor.key for tensor in state] == ["calls", "last"]
    assert not graph.mutations
    assert len(graph.graph_inputs) == len(ir.graph_inputs) + 2
    weights = {key: value for key, value in model.state_dict().items() if key not in ("calls", "last")}
    x, scale = torch.randn(2, 3, 8, 8), torch.tensor(2.0)
    outcome = IRExecutor(ir, model.state_dict()).run([x, scale])
    given = [x, scale, model.calls, model.last]
    results = IRExecutor(graph, weights).run(given).outputs
    torch.testing.assert_close(results, (*outcome.outputs, *outcome.mutations.values()))


def test_bound_weights_are_used_as_they_are(ir: IR, model: nn.Module) -> None:
    """Values that an optimised graph computes from weights are weights of the bound one; unused weights are removed."""
    better, _ = optimize(ir, "full")
    graph, values = bind(better, model.state_dict())
    assert {param.key for param in graph.params} == set(values)
    assert "norm.weight" not in values
    assert len(graph.nodes) < len(better.nodes)
    x, scale = torch.randn(2, 3, 8, 8), torch.tensor(2.0)
    expected = IRExecutor(ir, model.state_dict()).execute((x, scale))
    torch.testing.assert_close(IRExecutor(graph, values).execute((x, scale)), expected)


# -- called as the model --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [None, "clean", "full"])
def test_a_compiled_graph_is_called_as_the_model(ir: IR, model: nn.Module, level: str | None) -> None:
    """Results are nested like the model's, buffers persist, inputs are written to, the given weights are not."""
    before = {key: value.clone() for key, value in model.state_dict().items()}
    compiled = compile(ir, model.state_dict(), backend="torch", level=level)
    torch.testing.assert_close(dict(model.state_dict()), before)
    x, scale = torch.randn(2, 3, 8, 8), torch.tensor(2.0)
    ours = x.clone()
    with torch.no_grad():
        for _ in range(3):
            expected, actual = model(x, scale=scale), compiled(ours, scale=scale)
            torch.testing.assert_close(actual, expected)
            torch.testing.assert_close(ours, x)
            actual["state"][1].zero_()  # the caller's changes of a result do not affect the model's cache


class Found(nn.Module):
    """Returns sizes that an input shows, and some that only the data does."""

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        found = (x > 0).nonzero()
        return x.shape[0], found.shape[0] + 1, (x > 1).sum().item(), found


@pytest.mark.parametrize("name", ["torch", "onnxruntime"])
def test_numbers_that_the_data_decides(name: str) -> None:
    """Data-dependent numbers are read from the graph's results."""
    model = Found().eval()
    batch = torch.export.Dim("batch", min=2)
    ir = extract_ir(model, (torch.randn(3, 4),), dynamic_shapes={"x": {0: batch}}, strict=False)
    compiled = compile(ir, backend=name)
    for size in (2, 5):
        x = torch.randn(size, 4).round()
        actual, expected = compiled(x), model(x)
        assert actual[:3] == expected[:3]
        assert torch.equal(actual[3], expected[3])


def test_inputs_are_checked(ir: IR, model: nn.Module) -> None:
    """Before anything runs, so that errors are ours and not the runtime's."""
    compiled = compile(ir, model.state_dict(), backend="torch")
    with pytest.raises(ExecutionError, match=r"input 'x' has shape \[1, 3, 8, 8\], the graph takes \[2, 3, 8, 8\]"):
        compiled(torch.randn(1, 3, 8, 8), scale=torch.tensor(1.0))


def test_weights_are_checked_against_the_graph_that_was_given(ir: IR, model: nn.Module) -> None:
    weights = model.state_dict()
    del weights["norm.bias"]
    with pytest.raises(WeightLoadError, match=r"'norm.bias' is missing"):
        compile(ir, weights, backend="torch")


# -- the table ------------------------------------------------------------------------------------------------------


def test_the_command_line_knows_the_table() -> None:
    assert set(BACKENDS) == set(list_backends())


@pytest.mark.usefixtures("backends")
def test_a_back_end_of_the_users_own(ir: IR, model: nn.Module) -> None:
    """Registering a back end takes ten lines: a decorator on a function that prepares a graph."""
    seen: list[int] = []

    @register_backend("mine", "counts its calls")
    def prepare(ir: IR, weights: Mapping[str, Tensor]) -> Any:
        executor = IRExecutor(ir, weights)

        def run(values: Sequence[Any]) -> Sequence[Any]:
            seen.append(len(values))
            return executor.run(values).outputs

        return run

    compiled = compile(ir, model.state_dict(), backend="mine")
    compiled(torch.randn(2, 3, 8, 8), scale=torch.tensor(1.0))
    assert (seen, compiled.backend, compiled.why) == ([4], "mine", "mine was requested")
    with pytest.raises(RegistryError, match=r"back end 'mine' is already registered by .*prepare"):
        register_backend("mine", "another")(lambda ir, weights: lambda values: values)


def test_an_unknown_back_end_is_one_sentence() -> None:
    with pytest.raises(CommandError, match="unknown back end 'induktor'; did you mean 'inductor'"):
        find_backend("induktor")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    require = table.packages("the back end x", "onnx", "no_such_package")
    with pytest.raises(MissingExtraError, match=r"needs no_such_package; install it with: pip install 'torch-ir\[onnx"):
        require()


# -- the fastest ----------------------------------------------------------------------------------------------------


@pytest.fixture
def prepared(backends: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two more back ends, one of which does everything three times and one of which is wrong; the names as prepared."""
    made: list[str] = []

    def add(name: str, times: int, plus: float) -> None:
        @register_backend(name, "for a test")
        def prepare(ir: IR, weights: Mapping[str, Tensor]) -> Any:
            made.append(name)
            executor = IRExecutor(ir, weights)
            return lambda values: [value + plus for value in [executor.run(values) for _ in range(times)][-1].outputs]

    monkeypatch.setattr(auto, "_ROUNDS", 2)
    add("slow", 20, 0.0)
    add("wrong", 1, 1.0)
    return made


@pytest.fixture
def product() -> tuple[IR, dict[str, Tensor]]:
    torch.manual_seed(0)
    net = nn.Linear(256, 256).eval()
    return extract_ir(net, (torch.randn(64, 256),), strict=False), dict(net.state_dict())


def test_the_fastest_is_chosen_and_remembered(
    prepared: list[str], product: tuple[IR, dict[str, Tensor]], cache: Path
) -> None:
    """A back end with different results cannot win; the next process uses the cached choice."""
    x = torch.randn(64, 256)
    first = Auto(*product)
    assert first.why == "nothing was measured yet; the first call does that"
    first([x])
    assert first.chosen == "torch"
    assert first.why.startswith("torch is the fastest; torch ")
    assert "wrong: its results differ" in first.why
    assert sorted(prepared) == ["slow", "wrong"]
    second = Auto(*product)
    second([x])
    assert (second.chosen, second.why) == (first.chosen, first.why)
    assert sorted(prepared) == ["slow", "wrong"]
    assert len(json.loads((cache / "fastest.json").read_text())) == 1


@pytest.mark.parametrize(("times", "is_measured"), [(1, False), (100, True)])
def test_inductor_is_not_compiled_where_its_kernels_are_far_behind(
    backends: None,
    product: tuple[IR, dict[str, Tensor]],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    times: int,
    is_measured: bool,
) -> None:
    """It comes last, and only if `onednn`, with the same kernels, is not much slower than the fastest."""
    made: list[str] = []

    def repeating(name: str, times: int) -> Any:
        def prepare(ir: IR, weights: Mapping[str, Tensor]) -> Any:
            made.append(name)
            executor = IRExecutor(ir, weights)
            return lambda values: [executor.run(values) for _ in range(times)][-1].outputs

        return Backend(name, "for a test", prepare, lambda: None, races=True)

    racing = [repeating("torch", times), repeating("inductor", 30), repeating("onednn", 30)]
    monkeypatch.setattr(auto, "installed_backends", lambda: {found.name: found for found in racing})
    choosing = Auto(*product)
    choosing([torch.randn(64, 256)])
    assert made == ["torch", "onednn", *(["inductor"] if is_measured else [])]
    assert ("inductor: not measured: onednn, which has the same kernels, takes " in choosing.why) is not is_measured


@pytest.mark.slow
def test_the_fastest_of_all_that_is_installed(ir: IR, model: nn.Module) -> None:
    """With the real ones, state and all."""
    compiled = compile(ir, model.state_dict(), backend="auto")
    x, scale = torch.randn(2, 3, 8, 8), torch.tensor(2.0)
    with torch.no_grad():
        expected = model(x.clone(), scale=scale)
        torch.testing.assert_close(compiled(x.clone(), scale=scale), expected, rtol=1e-4, atol=1e-5)
    assert "fails" not in compiled.why


def test_a_choice_is_for_a_graph_and_its_inputs(product: tuple[IR, dict[str, Tensor]]) -> None:
    ir, _ = product
    other = extract_ir(nn.Linear(256, 128).eval(), (torch.randn(64, 256),), strict=False)
    x = torch.randn(64, 256)
    keys = [key_of(ir, [x]), key_of(ir, [x.clone()]), key_of(ir, [x[:1]]), key_of(other, [x])]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


@pytest.mark.parametrize("text", ["", "[]", '{"key": 3}', '{"key": {"backend": "gone"}}', "{"])
def test_a_spoilt_file_of_choices_is_as_good_as_none(cache: Path, text: str) -> None:
    cache.mkdir()
    (cache / "fastest.json").write_text(text)
    choices = Choices()
    assert choices.get("key") is None
    choices.keep("key", Choice("torch", {"torch": 0.5}, {}))
    assert choices.get("key") == Choice("torch", {"torch": 0.5}, {})


def test_what_was_chosen_may_be_gone(prepared: list[str], product: tuple[IR, dict[str, Tensor]]) -> None:
    """Then it is measured again."""
    x = torch.randn(64, 256)
    Choices().keep(key_of(product[0], [x]), Choice("gone", {}, {}))
    auto = Auto(*product)
    auto([x])
    assert auto.chosen == "torch"


# -- the verb -------------------------------------------------------------------------------------------------------


def test_run_takes_a_back_end(tmp_path: Path, product: tuple[IR, dict[str, Tensor]], capsys: Any) -> None:
    """The same numbers with another back end, and with the graph optimised first."""
    file = str(tmp_path / "net.json")
    product[0].save(file)
    for more in ([], ["--level", "full"], ["--backend", "onednn"]):
        assert main(["run", file, "--weights", "random", "--json", *more]) == 0
    (*_,) = shown = [json.loads(text) for text in capsys.readouterr().out.replace("}\n{", "}\0{").split("\0")]
    assert all(one["outputs"][0]["mean"] == pytest.approx(shown[0]["outputs"][0]["mean"], abs=1e-5) for one in shown)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--backend", "irre"], "unknown back end 'irre'; did you mean 'iree'?"),
        (
            ["--backend", "onednn", "--stream"],
            "--stream needs the back end torch: the others load all weights at once",
        ),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, product: tuple[IR, dict[str, Tensor]], capsys: Any, arguments: list[str], told: str
) -> None:
    file = str(tmp_path / "net.json")
    product[0].save(file)
    weights = str(tmp_path / "net.pt")
    torch.save(product[1], weights)
    assert main(["run", file, "--weights", weights, *arguments]) == 1
    assert capsys.readouterr().err == f"torch-ir: error: {told}\n"


def test_compiled_is_what_compile_gives(ir: IR, model: nn.Module) -> None:
    assert isinstance(compile(ir, model.state_dict(), backend="torch"), Compiled)
