"""Capture errors have a cause that selects the next method; only one file reads the text of messages."""

import ast
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import torch_ir
from torch_ir import CaptureWarning, ExportError, extract_ir
from torch_ir.capture.causes import cause_by_words, cause_of
from torch_ir.capture.ladder import Step, climb
from torch_ir.errors import Cause, ConversionError, TorchIRError
from torch_ir.ir import IR, TensorMeta

X = torch.ones(2, 4)
CAPTURE = Path(torch_ir.__file__).parent / "capture"


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1


class Seeds(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return x + torch.rand(4)


class SetsData(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        y.data = x * 2
        return y


class GrowingBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = torch.cat([self.seen, x[0, :1]])
        return x + self.seen.sum()


class CountsWrites(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x._version


class FixedSize(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(2, 1)


class TalksLikeUs(nn.Module):
    """Fails on tensors that are not plain ones, with a sentence that is in an error of torch_ir."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if type(x) is not torch.Tensor:
            raise ValueError("forward replaces the memory of a tensor")
        return x + 1


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        (Branch, Cause.BRANCH_ON_DATA),
        (Seeds, Cause.SEEDED),
        (SetsData, Cause.MEMORY_REPLACED),
        (CountsWrites, Cause.INPUT_QUESTION),
        (GrowingBuffer, Cause.BUFFER_CHANGES_FORM),
    ],
)
@pytest.mark.parametrize("isolated", [False, True])
def test_a_failure_has_its_cause(model: type[nn.Module], cause: Cause, isolated: bool) -> None:
    """Here and in a child process."""
    with pytest.raises((ExportError, ConversionError)) as caught:
        extract_ir(model().eval(), (X,), strict=False, capture="export", isolated=isolated)
    assert caught.value.cause is cause


def test_a_size_that_cannot_vary_has_its_cause() -> None:
    """A `Dim` for which the model is valid at one value only."""
    shapes = {"x": {0: torch.export.Dim("rows")}}
    with pytest.raises(ExportError, match="a size cannot vary as asked") as caught:
        extract_ir(FixedSize().eval(), (X,), strict=False, dynamic_shapes=shapes)
    assert caught.value.cause is Cause.SIZE_CANNOT_VARY


def test_words_of_the_user_decide_nothing() -> None:
    """A model that raises a sentence of ours is captured in strict mode all the same."""
    with pytest.warns(CaptureWarning, match="captured by torch.export in strict mode"):
        ir = extract_ir(TalksLikeUs().eval(), (X,), strict=False, capture="export")
    assert [node.op_type for node in ir.nodes] == ["torch_ir.fixed_attribute.default", "aten.add.Tensor"]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RuntimeError("Constraints violated (rows)! For more information"), Cause.SIZE_CANNOT_VARY),
        (RuntimeError("the Constraints violated"), Cause.UNKNOWN),
        (ValueError("Could not guard on data-dependent expression u0 > 0"), Cause.BRANCH_ON_DATA),
        (RuntimeError("\n .numpy() is not supported for tensor subclasses."), Cause.NUMPY),
        (TypeError("loop of ufunc does not support argument 0 of type SymFloat which has no"), Cause.NUMPY),
        (AttributeError("Can't pickle local object 'f.<locals>.g'"), Cause.DATA_POINTER),
        (AttributeError("Can't get local object 'f.<locals>.g'"), Cause.DATA_POINTER),
        (AttributeError("Can't get attribute 'g' on <module 'f'>"), Cause.UNKNOWN),
        (TypeError("missing a required argument: 'y'"), Cause.WRONG_INPUTS),
        (ValueError("missing a required argument: 'y'"), Cause.UNKNOWN),
        (RecursionError(), Cause.ENDLESS_RECURSION),
        (SystemExit(3), Cause.EXIT),
        (KeyError("x"), Cause.UNKNOWN),
        (ConversionError("data-dependent", cause=Cause.SEEDED), Cause.BRANCH_ON_DATA),
    ],
)
def test_causes_by_words(error: BaseException, cause: Cause) -> None:
    """The name and the first line count."""
    assert cause_by_words(error) is cause
    assert cause_of(error) is cause


def test_an_error_of_ours_keeps_its_cause() -> None:
    """One that is raised inside of forward, by a capture there; and one that is pickled."""
    error = ExportError("cannot capture Inner: why", cause=Cause.BRANCH_ON_DATA)
    assert cause_of(error) is Cause.BRANCH_ON_DATA
    assert cause_by_words(error) is Cause.UNKNOWN
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.cause) == (str(error), Cause.BRANCH_ON_DATA)
    assert TorchIRError("why").cause is Cause.UNKNOWN


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize(("cause", "taken"), [(Cause.NUMPY, "two"), (Cause.SEEDED, "three"), (Cause.UNKNOWN, "")])
def test_a_step_is_tried_after_its_causes(cause: Cause, taken: str, isolated: bool) -> None:
    """Those of the first failure; where no step is left, that failure is raised."""

    def fails() -> IR:
        raise ConversionError("cannot: why", cause=cause)

    def works() -> IR:
        x = TensorMeta("x", (2,), "float32")
        return IR([], [x], [x])

    steps = [
        Step("M", "one", fails),
        Step("M", "two", works, after=frozenset((Cause.NUMPY,))),
        Step("M", "three", works, after=frozenset((Cause.NUMPY, Cause.SEEDED))),
    ]
    if taken:
        with pytest.warns(CaptureWarning, match=f"captured by {taken}, because one cannot: why"):
            assert climb(steps, isolated=isolated).extensions == {"captured_by": taken}
    else:
        with pytest.raises(ConversionError, match="cannot: why") as caught:
            climb(steps, isolated=isolated)
        assert caught.value.cause is cause


def decisions_on_words(source: str) -> list[int]:
    """Return the lines that compare or search the text of a caught error."""
    tree = ast.parse(source)
    caught = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    texts = {f"str({name})" for name in {*caught, "error", "failure", "plain"}}
    found = []
    for node in ast.walk(tree):
        is_test = isinstance(node, ast.Compare) or (
            isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _SEARCHES
        )
        if is_test and any(text in ast.unparse(node) for text in texts):
            found.append(node.lineno)
    return found


_SEARCHES = ("startswith", "endswith", "search", "match", "fullmatch", "find", "index", "count")


def test_decisions_on_words_are_found() -> None:
    """By comparison, by method, by regular expression."""
    assert decisions_on_words("try: f()\nexcept E as e: x = 'a' in str(e)") == [2]
    assert decisions_on_words("str(error).startswith('a')") == [1]
    assert decisions_on_words("re.search('a', str(failure))") == [1]
    assert decisions_on_words("raise E(f'{error}: {str(error)}')") == []


def test_only_one_file_reads_the_words_of_an_error() -> None:
    """`capture/causes.py`, which turns them into causes."""
    files = [path for path in sorted(CAPTURE.rglob("*.py")) if path.name != "causes.py"]
    assert len(files) > 50
    assert [f"{path}:{line}" for path in files for line in decisions_on_words(path.read_text())] == []
