"""Pipelines of diffusers: each component as an entry point of one file, and the pipeline run through that file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torch_ir.capture import extract_ir
from torch_ir.entries.entry_feeds import Feed, input_places, output_places, places, plain_path
from torch_ir.entries.execute import bind_entries
from torch_ir.entries.extract_modules import entry_module, join, joined
from torch_ir.entries.lineage import Lineage
from torch_ir.errors import ExecutionError, ExportError
from torch_ir.ir import IR
from torch_ir.ir.graph.io_tree import Record, SparseRecord, rebuild
from torch_ir.ops.torch_internals import pytree
from torch_ir.ops.torch_types import TORCH_DTYPES

_METHODS = ("encode", "decode")  # of components, besides forward
_DEVICES = ("_execution_device", "device")  # of pipelines: where they make their own tensors

Handler = Callable[[str, Callable[..., Any], dict[str, Any]], Any]


class _NewCall(BaseException):
    """Ends a run of a pipeline at the first call of a component that has no graph yet."""

    def __init__(self, entry: str, function: Callable[..., Any], inputs: dict[str, Any]) -> None:
        super().__init__(entry)
        self.entry, self.function, self.inputs = entry, function, inputs


def extract_pipeline(pipeline: Any, *, model_name: str | None = None, blocks: str = "inline", **call: Any) -> IR:
    """Capture every component that `pipeline(**call)` calls, without reading weights; `call` fixes the sizes.

    No component runs: the pipeline's own code, such as its scheduler, gets zeros of the shapes that components return,
    and stays Python. The file has an entry point for each component (`unet`, `vae_decode`) and the map of which outputs
    were inputs of others, directly or through code of the pipeline.
    """
    name, root = model_name or type(pipeline).__name__, joined(_modules(pipeline))
    graphs: dict[str, IR] = {}
    while (new := _first_new_call(pipeline, call, graphs, {})) is not None:
        graphs[new.entry] = extract_ir(
            entry_module(root, new.function, list(new.inputs)),
            (),
            kwargs=_without_values(new.inputs),
            strict=False,
            model_name=f"{name}.{new.entry}",
            blocks=blocks,
        )
    if not graphs:
        raise ExportError(f"{name} called none of its components; pass the arguments of a whole run")
    feeds: dict[Feed, None] = {}
    _first_new_call(pipeline, call, graphs, feeds)
    return join(graphs, [feed for feed in feeds if _is_kept(graphs, feed)])


def _first_new_call(
    pipeline: Any, call: Mapping[str, Any], graphs: Mapping[str, IR], feeds: dict[Feed, None]
) -> _NewCall | None:
    """Run a pipeline with zeros as results of components, up to the first that has no graph; note what feeds what."""
    lineage = Lineage()

    def answer(entry: str, function: Callable[..., Any], inputs: dict[str, Any]) -> Any:
        if entry not in graphs:
            raise _NewCall(entry, function, inputs)
        for path, value in _named_tensors(inputs):
            feeds.update((Feed(*origin, entry, path, direct), None) for origin, direct in lineage.origins(value))
        made, tree = _zeros(graphs[entry]), graphs[entry].output_tree
        for place, value in places(tree, made).items():
            lineage.start(value, (entry, place))
        return _as_output(rebuild(tree, made))

    try:
        with torch.no_grad(), _on_cpu(pipeline), _intercepted(pipeline, answer), lineage:
            pipeline(**call)
    except _NewCall as new:
        return new
    return None


def run_pipeline(pipeline: Any, ir: IR, weights: Mapping[str, Tensor] | None = None, **call: Any) -> Any:
    """Call a pipeline with the graphs of a file in place of its components, and return its result."""
    executors = bind_entries(ir, pipeline_weights(pipeline) if weights is None else weights)

    def execute(entry: str, function: Callable[..., Any], inputs: dict[str, Any]) -> Any:
        if entry not in executors:
            raise ExecutionError(f"the file has no entry point {entry!r}, which the pipeline calls")
        return _as_output(executors[entry](**inputs))

    with torch.no_grad(), _on_cpu(pipeline), _intercepted(pipeline, execute):
        return pipeline(**call)


def pipeline_weights(pipeline: Any) -> dict[str, Tensor]:
    """Return the weights of all components, as the graphs name them: `unet.conv_in.weight`."""
    modules = _modules(pipeline)
    return {f"{name}.{key}": value for name, each in modules.items() for key, value in each.state_dict().items()}


def _modules(pipeline: Any) -> dict[str, nn.Module]:
    found = {name: each for name, each in pipeline.components.items() if isinstance(each, nn.Module)}
    if not found:
        raise ExportError(f"{type(pipeline).__name__} has no components that are modules of torch")
    return found


@contextmanager
def _intercepted(pipeline: Any, handle: Handler) -> Iterator[None]:
    """Redirect all calls of components to `handle`: of forward, and of the methods that are entry points."""
    with ExitStack() as stack:
        for name, module in _modules(pipeline).items():
            methods = [method for method in _METHODS if callable(getattr(module, method, None))]
            for method in ("forward", *methods):
                entry = name if method == "forward" else f"{name}_{method}"
                stack.enter_context(_replaced(module, method, entry, handle))
        yield


@contextmanager
def _replaced(module: nn.Module, method: str, entry: str, handle: Handler) -> Iterator[None]:
    original, own = getattr(module, method), vars(module).get(method)  # a hook may have set its own
    signature = inspect.signature(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        return handle(entry, original, _keywords(signature, args, kwargs))

    call.__signature__ = signature  # type: ignore[attr-defined]  # pipelines ask for the names of parameters
    setattr(module, method, call)
    try:
        yield
    finally:
        delattr(module, method)
        if own is not None:
            setattr(module, method, own)


def _keywords(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, without defaults and generators: a graph draws from torch's own."""
    named, known = dict(signature.bind(*args, **kwargs).arguments), signature.parameters
    for name in [name for name in named if known[name].kind is inspect.Parameter.VAR_KEYWORD]:
        named |= named.pop(name)
    return {
        name: value
        for name, value in named.items()
        if not isinstance(value, torch.Generator) and not (name in known and value is known[name].default)
    }


@contextmanager
def _on_cpu(pipeline: Any) -> Iterator[None]:
    """Make a pipeline with components on meta create its own tensors on the CPU."""
    original = type(pipeline)
    if not any(parameter.is_meta for each in _modules(pipeline).values() for parameter in each.parameters()):
        yield
        return
    pipeline.__class__ = type(original.__name__, (original,), dict.fromkeys(_DEVICES, torch.device("cpu")))
    try:
        yield
    finally:
        pipeline.__class__ = original


def _zeros(ir: IR) -> list[Tensor]:
    """Return zeros of the shapes that a component returns."""
    return [torch.zeros([int(dim) for dim in each.shape], dtype=TORCH_DTYPES[each.dtype]) for each in ir.graph_outputs]


def _as_output(found: Any) -> Any:
    return SparseRecord(found) if isinstance(found, Record) else found


def _without_values(inputs: dict[str, Any]) -> dict[str, Any]:
    moved: dict[str, Any] = pytree.tree_map_only(Tensor, lambda each: each.to("meta"), inputs)
    return moved


def _named_tensors(values: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of nested values with their paths, such as `hidden_states.0`."""
    for path, value in pytree.tree_flatten_with_path(values)[0]:
        if isinstance(value, Tensor):
            yield plain_path(pytree.keystr(path)), value


def _is_kept(graphs: Mapping[str, IR], feed: Feed) -> bool:
    """Whether both ends are in the graphs: a value that a component only passes on is not an input."""
    return feed.place in output_places(graphs[feed.source]) and feed.argument in input_places(graphs[feed.target])
