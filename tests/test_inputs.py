"""Inputs on the command line: every form, the suggested fix of a wrong one, and values from files."""

import contextlib
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors.torch as safetensors
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torch_ir.cli.arguments.dynamic_sizes import choose_sizes
from torch_ir.cli.arguments.input_files import read_files
from torch_ir.cli.arguments.input_specs import InputSpec, parse_input, parse_inputs
from torch_ir.cli.arguments.size_specs import Affine, DimRange, parse_affine, parse_dims, parse_size
from torch_ir.errors import CommandError
from torch_ir.ir.graph.attr_types import DTYPES

NAMES = st.from_regex(r"[a-z][a-z_]{1,6}", fullmatch=True).map(lambda word: f"s_{word}")  # never a reserved word
NUMBERS = st.integers(0, 10**6)


# -- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "size", "dim"),
    [
        ("8", 8, None),
        ("batch", "batch", None),
        ("seq<=2048", "seq", DimRange(None, 2048)),
        ("seq<2048", "seq", DimRange(None, 2047)),
        ("seq>=2", "seq", DimRange(2)),
        ("seq>2", "seq", DimRange(3)),
        ("2<=seq<=2048", "seq", DimRange(2, 2048)),
        ("1<seq<10", "seq", DimRange(2, 9)),
        ("2<=seq", "seq", DimRange(2)),
        ("batch=1..32", "batch", DimRange(1, 32)),
        ("batch=2..", "batch", DimRange(2)),
        ("batch=..9", "batch", DimRange(None, 9)),
        ("8*n", "8*n", None),
        ("n*8", "8*n", None),
        ("2*n+1", "2*n+1", None),
        ("n-3", "n-3", None),
    ],
)
def test_sizes(word: str, size: int | str, dim: DimRange | None) -> None:
    """A number, a name, a name with its range, or an expression of a name."""
    assert parse_size(word) == (size, dim)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("-1", "name a dynamic size, as in f32[batch,3]"),
        ("5<=seq<=2", "is an empty range of sizes: 5 is more than 2"),
        ("seq<0", "is an empty range"),
        ("2<=seq>=4", "has two lower bounds"),
        ("0*n", "does not depend on n"),
        ("2*n*2", "is not a size"),
        ("n*m", "is not a size"),
        ("1..", "write it as batch=4 or batch=1..32"),
        ("lambda", "is reserved"),
        ("floor", "is reserved"),
        ("\u0665", "is not a size"),  # a digit, but not one of ours
    ],
)
def test_wrong_sizes(word: str, message: str) -> None:
    """An invalid size is rejected with the reason."""
    with pytest.raises(CommandError, match=message.replace("[", r"\[")):
        parse_size(word)


@given(NAMES, st.integers(1, 100), st.integers(-100, 100))
def test_sizes_made_of_a_name_come_back(name: str, times: int, plus: int) -> None:
    """The printed form of an affine size parses to the same."""
    size = Affine(name, times, plus)
    assert parse_affine(str(size)) == size


@given(NAMES, NUMBERS, NUMBERS)
def test_ranges_in_every_spelling(name: str, low: int, more: int) -> None:
    """`a<=n<=b`, `n=a..b` and `--dim n=a..b` are the same."""
    high = low + more
    expected = (name, DimRange(low, high))
    assert parse_size(f"{low}<={name}<={high}") == expected
    assert parse_size(f"{name}={low}..{high}") == expected
    assert parse_dims([f"{name}={low}..{high}"]) == dict([expected])


# -- inputs -----------------------------------------------------------------------------------------------------------


@given(
    st.one_of(st.none(), NAMES),
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.one_of(NUMBERS, NAMES), max_size=5),
)
def test_tensors_come_back(name: str | None, dtype: str, shape: list[int | str]) -> None:
    """Name, dtype and sizes are read as they are written, with spaces or without."""
    text = f"{name} = " if name else ""
    text += f"{dtype}[{', '.join(map(str, shape))}]"
    assert parse_input(text) == InputSpec(text, name, dtype, tuple(shape))


@example(text=".0")
@given(st.text(max_size=20))
@settings(max_examples=300)
def test_no_text_breaks_the_parser(text: str) -> None:
    """Any text is an input, or one sentence."""
    with contextlib.suppress(CommandError):
        assert parse_input(text).text == text


@given(NAMES, st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), st.text()), st.lists, max_leaves=4))
def test_json_values_come_back(name: str, value: Any) -> None:
    """The text after := is JSON."""
    import json

    assert parse_input(f"{name}:={json.dumps(value)}") == InputSpec(f"{name}:={json.dumps(value)}", name, value=value)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("flag=true", "flag", True),
        ("flag=False", "flag", False),
        ("mask=none", "mask", None),
        ("mask=null", "mask", None),
        ("scale=0.5", "scale", 0.5),
        ("scale:-1e-3", "scale", -0.001),
        ("n=-3", "n", -3),
        ("scale=1e3", "scale", 1000.0),
        ("true", None, True),
    ],
)
def test_plain_values(text: str, name: str | None, value: Any) -> None:
    """Words and numbers that cannot be sizes are values."""
    spec = parse_input(text)
    assert (spec.name, spec.value, type(spec.value)) == (name, value, type(value))
    assert spec.is_plain


def test_a_bare_number_may_be_either() -> None:
    """`n=3` is a tensor of three elements, or the number if the argument accepts numbers."""
    spec = parse_input("n=3")
    assert (spec.shape, spec.number) == ((3,), 3)
    assert parse_input("n=3x4").number is None


def test_ranges_belong_to_the_input() -> None:
    """A size in brackets may bring its range along."""
    spec = parse_input("ids=i64[batch=1..32,seq<=2048]<100")
    assert spec.shape == ("batch", "seq")
    assert spec.ranges == (("batch", DimRange(1, 32)), ("seq", DimRange(None, 2048)))
    assert spec.below == 100


def test_capture_sizes_of_what_is_made_of_a_name() -> None:
    """The name gets a size, and the range is that of the name."""
    assert choose_sizes(parse_inputs(["f32[8*n,n+1]"]), parse_dims(["n=3..5"])) == {"n": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x:=", "expected a JSON value after :=, such as n:=3"),
        ("x:={", "expected a JSON value after :="),
        ("f32[n*m]", "did you mean 'f32[n,m]'?"),
        ("3*224*224", "did you mean '3x224x224'?"),
        ("f32[seq<=2,seq>=4", "did you mean 'f32[seq<=2,seq>=4]'?"),
    ],
)
def test_wrong_inputs(text: str, message: str) -> None:
    """One sentence that names the nearest fix."""
    with pytest.raises(CommandError) as raised:
        parse_input(text)
    assert message in str(raised.value)


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the same two tensors in files of every kind, as the current one."""
    monkeypatch.chdir(tmp_path)
    x, y = torch.arange(3.0), torch.arange(4)
    torch.save(x, "one.pt")
    torch.save({"x": x, "y": y}, "both.pt")
    torch.save([x, y], "list.pt")
    torch.save({"x": x, "options": {"keys": y, "count": 3}, "pair": (x, y)}, "nested.pt")
    torch.save({"x": {1, 2}}, "set.pt")
    numpy.save("one.npy", x.numpy())
    numpy.savez("both.npz", x=x.numpy(), y=y.numpy())
    numpy.savez("words.npz", x=numpy.array(["a"]))
    numpy.save("pickled.npy", numpy.array([{}], dtype=object), allow_pickle=True)
    safetensors.save_file({"x": x, "y": y}, "both.safetensors")
    Path("bad.npz").write_bytes(b"PK nothing")
    Path("bad.pt").write_bytes(b"nothing")
    Path("notes.txt").write_text("nothing")
    return tmp_path


def read(*texts: str) -> list[tuple[str | None, Any]]:
    return [
        (spec.name, spec.value.tolist() if isinstance(spec.value, torch.Tensor) else spec.value)
        for spec in read_files(parse_inputs(texts))
    ]


X, Y = [0.0, 1.0, 2.0], [0, 1, 2, 3]


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "pt"])
def test_files_of_several_tensors(files: Path, suffix: str) -> None:
    """Without a name all inputs at once; with one, the tensor of that name or the member."""
    assert sorted(read(f"@both.{suffix}")) == [("x", X), ("y", Y)]
    assert read(f"y=@both.{suffix}") == [("y", Y)]
    assert read(f"a=@both.{suffix}#y", f"@both.{suffix}#x") == [("a", Y), (None, X)]


def test_files_of_one_tensor(files: Path) -> None:
    """With a name or in order."""
    assert read("@one.pt", "b=@one.npy") == [(None, X), ("b", X)]


def test_lists_are_in_order_and_what_is_nested_has_dots(files: Path) -> None:
    """A list contains inputs in order; nested dicts have dotted names."""
    assert read("@list.pt") == [(None, X), (None, Y)]
    assert read("@nested.pt") == [
        ("x", X), ("options.keys", Y), ("options.count", 3), ("pair.0", X), ("pair.1", Y)
    ]  # fmt: skip
    assert read("k=@nested.pt#options.keys") == [("k", Y)]


def test_a_number_sign_may_belong_to_the_name(files: Path) -> None:
    """An existing file has priority, whatever its name."""
    torch.save(torch.zeros(1), "a#b.pt")
    assert read("@a#b.pt") == [(None, [0.0])]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("@none.npy", "no such file: none.npy"),
        ("x=@notes.txt", "notes.txt: unknown file type; expected .npy, .npz, .safetensors or .pt"),
        ("z=@both.npz", "both.npz contains 2 tensors, none named 'z'; name one: z=@both.npz#x"),
        ("xx=@both.npz", "did you mean 'x'?"),
        ("@both.npz#z", "both.npz has no member 'z'; members: x, y"),
        ("@one.pt#z", "one.pt has no member 'z'; members: none"),
        ("@bad.npz", "cannot read bad.npz: "),
        ("@bad.pt", "cannot read bad.pt: "),
        ("@words.npz", "cannot read words.npz: can't convert np.ndarray"),
        ("@pickled.npy", "cannot read pickled.npy: Object arrays cannot be loaded"),
        ("@set.pt", "set.pt contains a set, not a tensor"),
    ],
)
def test_wrong_files(files: Path, text: str, message: str) -> None:
    """A one-line error that names the file; no code in a file is run."""
    with pytest.raises(CommandError) as raised:
        read(text)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_name_twice_is_refused_wherever_it_is_from(files: Path) -> None:
    """A file must not contain an input that is also given explicitly."""
    with pytest.raises(CommandError, match="the input 'y' is given twice"):
        read("@both.npz", "y=f32[3]")
