"""Read the weights as checkpoints store them: the conversions of `transformers` on loading become nodes of the graph.

`transformers` renames and converts weights when it loads a checkpoint: for example, it stacks the experts of a layer,
or splits a fused projection. The same conversions, recorded on tensors without values, precede the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from torch_ir.capture import extract_ir
from torch_ir.capture.naming.export_names import weight_name
from torch_ir.errors import ExportError, first_line
from torch_ir.ir import IR, OpNode, Origin, Param, TensorMeta
from torch_ir.ir.graph.free_names import fresh


def to_checkpoint_layout(ir: IR, model: Any) -> IR:
    """Return a copy of a `transformers` model's graph whose weights have the keys and shapes of its checkpoints.

    A weight that `transformers` only renames gets the key of the checkpoint. One that it converts is computed by nodes
    over the tensors of the checkpoint; they depend on weights alone, so they run once, when weights are bound.
    """
    layout = _Layout.of(model)
    ir = ir.clone()
    if layout.is_plain:
        return ir
    for graph in (ir, *ir.functions.values()):
        _rewrite(graph, layout)
    return ir.check()


def checkpoint_weights(model: Any) -> dict[str, Tensor]:
    """Return the weights of a `transformers` model under the keys and in the shapes that `save_pretrained` writes."""
    from transformers.core_model_loading import revert_weight_conversion

    with torch.no_grad():
        found: dict[str, Tensor] = revert_weight_conversion(model, model.state_dict())
    return found


@dataclass(frozen=True)
class _Conversion:
    """One call of a converter: the tensors of the checkpoint that it reads, by pattern, and what it computes."""

    converter: Any
    first: str  # the first weight that it computes, by which the converter finds the names of the others
    patterns: tuple[str, ...]  # of the converter, one for each source
    sources: tuple[str, ...]
    targets: tuple[str, ...]

    def run(self, tensors: Iterable[Tensor], model: Any) -> dict[str, Tensor]:
        """Convert tensors; the result is by key of the model."""
        converter = deepcopy(self.converter)
        for pattern, source, tensor in zip(self.patterns, self.sources, tensors, strict=True):
            converter.add_tensor(self.first, source, pattern, tensor)
        found = converter.convert(self.first, model=model, config=model.config)
        return {key: value[0] if isinstance(value, list) else value for key, value in found.items()}


@dataclass(frozen=True)
class _Layout:
    """How the weights of a model are stored: renamed, or to be converted."""

    model: Any
    own: Mapping[str, Tensor]  # the weights of the model, on meta
    stored: Mapping[str, Tensor]  # those of the checkpoint
    renamed: Mapping[str, str]  # key of the model -> key of the checkpoint
    converted: Mapping[str, _Conversion]  # by key of the model
    recorded: dict[Any, IR]  # equal conversions are recorded once

    @classmethod
    def of(cls, model: Any) -> _Layout:
        """Return the layout that `save_pretrained` writes; raise ExportError if loading would not restore the model."""
        try:
            from transformers import core_model_loading as loading
        except ImportError:
            raise ExportError(
                "the installed transformers converts no weights on loading; it is older than 5.0"
            ) from None
        own = {key: tensor.to("meta") for key, tensor in model.state_dict().items()}
        try:
            stored: dict[str, Tensor] = loading.revert_weight_conversion(model, dict(own))
            groups = _groups(model, own, stored, loading)
        except Exception as error:  # any error of a conversion
            raise ExportError(
                f"transformers cannot convert the weights of {type(model).__name__}: {first_line(error)}"
            ) from error
        renamed = {group.first: group.sources[0] for group in groups if group.converter is None}
        converted = {key: group for group in groups if group.converter is not None for key in group.targets}
        lost = own.keys() - renamed.keys() - converted.keys()
        if lost:
            raise ExportError(
                f"transformers stores no tensor for {min(lost)!r} and {len(lost) - 1} more of {type(model).__name__}"
            )
        return cls(model, own, stored, renamed, converted, {})

    @property
    def is_plain(self) -> bool:
        """Whether a checkpoint has the keys and shapes of the model."""
        return not self.converted and all(key == stored for key, stored in self.renamed.items())

    def graph(self, conversion: _Conversion) -> IR:
        """Return a conversion as a graph without inputs, with one output for each target."""
        given = [self.stored[key] for key in conversion.sources]
        kept = (given[0].dtype, *(tuple(tensor.shape) for tensor in given))
        shapes = tuple(tuple(self.own[key].shape) for key in conversion.targets)
        key = (id(conversion.converter), conversion.patterns, kept, shapes)
        if key not in self.recorded:
            self.recorded[key] = extract_ir(_Converting(conversion, given, self.model).eval(), ())
        return self.recorded[key]


def _groups(model: Any, own: Mapping[str, Tensor], stored: Mapping[str, Tensor], loading: Any) -> list[_Conversion]:
    """Assign the tensors of a checkpoint to weights of the model, as loading does."""
    transforms = _transforms(model, loading)
    renamings = [each for each in transforms if isinstance(each, loading.WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, loading.WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    prefix = model.base_model_prefix
    found: dict[str, list[tuple[Any, str, str]]] = {}
    for key in sorted(stored, key=loading.dot_natural_key):
        target, pattern = loading.rename_source_key(key, renamings, converters, prefix, own)
        if target not in own and key in own:
            target, pattern = loading.rename_source_key(key, [], [], prefix, own)
        found.setdefault(target, []).append((by_pattern[pattern] if pattern else None, pattern or key, key))
    groups = []
    for target, members in found.items():
        converter = members[0][0]
        _, patterns, sources = zip(*members, strict=True)
        group = _Conversion(converter, target, patterns, sources, (target,))
        if converter is not None:
            made = group.run([stored[key] for key in sources], model)
            group = replace(group, targets=tuple(made))
            wrong = [key for key, tensor in made.items() if key not in own or own[key].shape != tensor.shape]
            if wrong:
                raise ExportError(f"the conversion of {sources[0]!r} gives no {wrong[0]!r}")
        groups.append(group)
    return groups


def _transforms(model: Any, loading: Any) -> list[Any]:
    """Return the conversions of a model: those that loaded it, or those of its architecture."""
    loaded = getattr(model, "_weight_conversions", None)
    if loaded is not None:
        return list(deepcopy(loaded))
    from transformers.conversion_mapping import get_model_conversion_mapping

    found = get_model_conversion_mapping(model, add_legacy=False)
    return [each for each in found if not isinstance(each, loading.PrefixChange)]


class _Converting(nn.Module):
    """A conversion as a model whose parameters are the tensors of the checkpoint."""

    def __init__(self, conversion: _Conversion, tensors: Iterable[Tensor], model: Any) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(nn.Parameter(tensor, requires_grad=False) for tensor in tensors)
        self._run = lambda: tuple(conversion.run(list(self.tensors), model).values())

    def forward(self) -> tuple[Tensor, ...]:
        return self._run()


def _rewrite(graph: IR, layout: _Layout) -> None:
    """Let a graph read the tensors of the checkpoint."""
    taken = {tensor.name for tensor in (*graph.graph_inputs, *graph.params)}
    taken |= {name for node in graph.nodes for name in (node.name, *(tensor.name for tensor in node.outputs))}
    written = {target for target, _ in graph.mutations}
    sources: dict[str, TensorMeta] = {}
    nodes: list[OpNode] = []
    results: dict[str, TensorMeta] = {}
    for param in list(graph.params):
        if param.param is None or not param.param.in_state_dict:
            continue
        key = next((key for key in param.param.keys if key in layout.converted), None)
        if key is None:
            keys = tuple(dict.fromkeys(layout.renamed.get(key, key) for key in param.param.keys))
            param.param = replace(param.param, keys=keys)
            continue
        if param in written:
            raise ExportError(f"{key!r} is converted on loading and changed by the model, which is not supported")
        if key not in results:
            results.update(_converted(layout, layout.converted[key], sources, nodes, taken))
        param.replace_all_uses_with(results[key])
    graph.params = [param for param in graph.params if param.consumers or param in written]
    graph.params += [source for source in sources.values() if source.consumers]
    graph.nodes = [*nodes, *graph.nodes]


def _converted(
    layout: _Layout,
    conversion: _Conversion,
    sources: dict[str, TensorMeta],
    nodes: list[OpNode],
    taken: set[str],
) -> dict[str, TensorMeta]:
    """Append the nodes of a conversion; return what they compute, by key of the model."""
    body = layout.graph(conversion)
    here: dict[TensorMeta, TensorMeta] = {}
    for param in body.params:
        key = conversion.sources[int((param.key or "").rpartition(".")[2])]
        if key not in sources:
            name = fresh(weight_name("p", key), taken)
            sources[key] = TensorMeta(name, param.shape, param.dtype, stride=param.stride, param=Param((key,)))
        here[param] = sources[key]
    origin = Origin(conversion.first.rpartition(".")[0])
    for node in body.nodes:
        for tensor in node.outputs:
            here[tensor] = tensor.copy()
            here[tensor].name = fresh(tensor.name, taken)
        name = here[node.outputs[0]].name if len(node.outputs) == 1 else fresh(node.name, taken)
        copied = node.copy(here.__getitem__, name)
        copied.origin = origin
        nodes.append(copied)
    outputs = [here[tensor] for tensor in body.graph_outputs]
    return dict(zip(conversion.targets, outputs, strict=True))
