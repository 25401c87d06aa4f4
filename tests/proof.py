"""Build a small model, capture it without weights, round-trip it through a file, and verify it."""

import contextlib
import copy
import functools
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import catalogue
from torch_ir import IR, CaptureWarning, IRExecutor, VerificationReport, extract_ir, verify_ir_with_state_dict


def module(forward: Callable[..., Any], **parts: Any) -> nn.Module:
    """A model in eval mode with this `forward` and these attributes; `buffers` is a dict of persistent buffers."""
    made = type("Model", (nn.Module,), {"forward": forward})()
    for name, buffer in parts.pop("buffers", {}).items():
        made.register_buffer(name, buffer)
    for name, part in parts.items():
        setattr(made, name, part)
    return made.eval()


def to_meta(tree: Any) -> Any:
    """Nested inputs with every tensor on meta."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), tree)


def captured(model: nn.Module, *inputs: Any, kwargs: Mapping[str, Any] | None = None, dynamic_shapes: Any = None) -> IR:
    """The graph of a model as a reader of the saved file gets it; weights and inputs are on meta."""
    bare = copy.deepcopy(model).to("meta")
    args, keywords = to_meta((inputs, dict(kwargs or {})))
    return IR.from_json(extract_ir(bare, args, kwargs=keywords, dynamic_shapes=dynamic_shapes).to_json())


def captured_entry(name: str) -> IR:
    """The graph of a model of the catalogue; `captured` makes it once for all tests of a process."""
    return IR.from_json(_entry_text(name))


@functools.cache
def _entry_text(name: str) -> str:
    entry = catalogue.find(name)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)  # of constants without values
        torch.manual_seed(0)
        return captured(entry.build(), *entry.inputs(), kwargs=entry.kwargs()).to_json()


def verdict(
    ir: IR, model: nn.Module, *inputs: Any, kwargs: Mapping[str, Any] | None = None, **options: Any
) -> VerificationReport:
    """The report of a graph against the model that it was captured from."""
    return verify_ir_with_state_dict(ir, model.state_dict(), model, inputs, test_kwargs=kwargs, **options)[1]


def fails(ir: IR, model: nn.Module, *inputs: Any) -> str:
    """The reason for which a wrong graph is refused."""
    report = verdict(ir.check(), model, *inputs)
    assert not report.is_valid, f"{report}\n{ir}"
    assert str(report).startswith("Verification FAILED")
    return report.error_message or ""


def proved(model: nn.Module, *inputs: Any, kwargs: Mapping[str, Any] | None = None, dynamic_shapes: Any = None) -> IR:
    """The graph of a model, after it gave the model's results."""
    ir = captured(model, *inputs, kwargs=kwargs, dynamic_shapes=dynamic_shapes)
    report = verdict(ir, model, *inputs, kwargs=kwargs)
    assert report.is_valid, f"{report}\n{ir}"
    return ir


def agrees(ir: IR, model: nn.Module, *inputs: Any) -> bool:
    """Whether the graph and the model return the same, in every leaf."""
    with torch.no_grad():
        wanted = pytree.tree_leaves(model(*inputs))
    got = pytree.tree_leaves(IRExecutor(ir, model.state_dict())(*inputs))
    return len(got) == len(wanted) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else (type(a), a) == (type(b), b)
        for a, b in zip(got, wanted, strict=True)
    )


def assert_near(got: Any, wanted: Any) -> None:
    """The same leaves in the same order, as near as kernels of two libraries are."""
    torch.testing.assert_close(
        pytree.tree_leaves(got), pytree.tree_leaves(wanted), rtol=1e-3, atol=1e-4, equal_nan=True
    )


def ops(ir: IR) -> list[str]:
    """The operators of a graph in order."""
    return [node.op_type for node in ir.nodes]


def line_of(file: str, mark: str) -> str:
    """The place, as the graph names it, of the line of a test file that ends in the comment `# mark`."""
    path = Path(file)
    lines = path.read_text(encoding="utf-8").splitlines()
    return f"tests/{path.name}:{next(i for i, text in enumerate(lines, 1) if text.endswith(f'# {mark}'))}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings of torch and its libraries that are irrelevant here."""
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
