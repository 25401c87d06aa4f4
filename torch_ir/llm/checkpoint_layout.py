"""Read the weights as checkpoints store them: the conversions of `transformers` on loading become nodes of the graph.

`transformers` renames and converts weights when it loads a checkpoint: for example, it stacks the experts of a layer,
or splits a fused projection. The same conversions, recorded on tensors without values, precede the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from torch_ir.capture import extract_ir
from torch_ir.errors import ExportError, first_line
from torch_ir.ir import IR
from torch_ir.ir.regroup.functions import further_entries
from torch_ir.llm.quantized import StoredWeight, quantization_of
from torch_ir.llm.stacked_sources import Source, plain_weight, stacked_sources, without_restacking
from torch_ir.llm.stored_reads import Rewriting
from torch_ir.run.gguf_file import for_keys
from torch_ir.run.stored import Weight
from torch_ir.run.weight_files import WeightSource, headers_of

PLACES = ("prologue", "layer")  # where weights are dequantised


def to_checkpoint_layout(
    ir: IR, model: Any, *, dequantize: str = "prologue", checkpoint: WeightSource | None = None
) -> IR:
    """Return a copy of a `transformers` model's graph whose weights have the keys and shapes of its checkpoints.

    A weight that `transformers` only renames gets the key of the checkpoint. One that it converts is computed by nodes
    over the tensors of the checkpoint; they depend on weights alone, so they run once, when weights are bound. If the
    configuration has a `quantization_config`, so is dequantisation; with `dequantize="layer"`, it is part of the nodes
    that read the weight and runs with them, so that weights stay quantised in memory. `checkpoint`, of which only
    headers are read, says which weights are quantised, and which dtypes it has.
    """
    if dequantize not in PLACES:
        raise ExportError(f"unknown dequantize {dequantize!r}; expected one of {', '.join(PLACES)}")
    layout = Layout.of(model, None if checkpoint is None else headers_of(checkpoint))
    ir = ir.clone()
    if layout.is_plain:
        return ir
    for graph in (ir, *further_entries(ir).values()):
        Rewriting(graph, layout, in_layers=dequantize == "layer").run()
    return ir.check()


def checkpoint_weights(model: Any) -> dict[str, Tensor]:
    """Return the weights of a `transformers` model under the keys and in the shapes that `save_pretrained` writes."""
    from transformers.core_model_loading import revert_weight_conversion

    with torch.no_grad():
        found: dict[str, Tensor] = revert_weight_conversion(model, model.state_dict())
    return found


@dataclass(frozen=True)
class Conversion:
    """One call of a converter: the tensors of the checkpoint that it reads, by pattern, and what it computes."""

    converter: Any  # None: the tensor is only renamed, or dequantised
    first: str  # the first weight that it computes, by which the converter finds the names of the others
    patterns: tuple[str, ...]  # of the converter, one for each source
    sources: tuple[str, ...]
    targets: tuple[str, ...]

    def run(self, tensors: Iterable[Tensor], model: Any) -> dict[str, Tensor]:
        """Convert tensors; the result is by key of the model."""
        if self.converter is None:
            return dict(zip(self.targets, tensors, strict=True))
        converter = deepcopy(self.converter)
        for pattern, source, tensor in zip(self.patterns, self.sources, tensors, strict=True):
            converter.add_tensor(self.first, source, pattern, tensor)
        found = converter.convert(self.first, model=model, config=model.config)
        return {key: value[0] if isinstance(value, list) else value for key, value in found.items()}


@dataclass(frozen=True)
class Layout:
    """Stored form of a model's weights: renamed, or to be converted."""

    model: Any
    own: Mapping[str, Tensor]  # the weights of the model, on meta
    stored: Mapping[str, Tensor]  # those of the checkpoint
    renamed: Mapping[str, str]  # key of the model -> key of the checkpoint
    converted: Mapping[str, Conversion]  # converted or dequantised, by key of the model
    quantized: Mapping[str, StoredWeight]  # by key of the checkpoint if it were not quantised
    dtypes: Mapping[str, torch.dtype]  # of the tensors of a given checkpoint
    recorded: dict[Any, IR] = field(default_factory=dict)  # equal conversions are recorded once
    graphs: dict[str, tuple[IR, list[str]]] = field(default_factory=dict)  # what `graph` returned, by first target

    @classmethod
    def of(cls, model: Any, headers: Mapping[str, Weight] | None = None) -> Layout:
        """Return the layout that `save_pretrained` writes; raise ExportError if loading would not restore the model."""
        from transformers import core_model_loading as loading

        own = {key: tensor.to("meta") for key, tensor in model.state_dict().items()}
        try:
            stored: dict[str, Tensor] = loading.revert_weight_conversion(model, dict(own))
            groups = _groups(model, own, stored, loading)
        except Exception as error:  # any error of a conversion
            raise ExportError(
                f"transformers cannot convert the weights of {type(model).__name__}: {first_line(error)}"
            ) from error
        headers = None if headers is None else for_keys(headers, stored)
        quantized = _quantized(model, groups, stored, headers)
        kept = [group for group in groups if group.converter is None and group.sources[0] not in quantized]
        renamed = {group.first: group.sources[0] for group in kept}
        converted = {key: group for group in groups if group.first not in renamed for key in group.targets}
        lost = own.keys() - renamed.keys() - converted.keys()
        if lost:
            raise ExportError(
                f"transformers stores no tensor for {min(lost)!r} and {len(lost) - 1} more of {type(model).__name__}"
            )
        dtypes = {key: header.dtype for key, header in (headers or {}).items()}
        return cls(model, own, stored, renamed, converted, quantized, dtypes)

    @property
    def is_plain(self) -> bool:
        """Whether a checkpoint has the keys, shapes and dtypes of the model."""
        is_renamed = any(key != stored for key, stored in self.renamed.items())
        is_cast = any(self.dtypes.get(key, tensor.dtype) != tensor.dtype for key, tensor in self.stored.items())
        return not (self.converted or is_renamed or is_cast)

    def formats(self, conversion: Conversion) -> list[str]:
        """Return the formats of the quantised tensors that a conversion reads."""
        return [self.quantized[key].format for key in conversion.sources if key in self.quantized]

    def graph(self, conversion: Conversion) -> tuple[IR, list[str]]:
        """Return a conversion as a graph without inputs, and the keys of its weights in the order of their numbers."""
        if conversion.first in self.graphs:
            return self.graphs[conversion.first]
        weights = [self.quantized.get(key) or plain_weight(key, self.stored[key]) for key in conversion.sources]
        sources = stacked_sources(conversion.patterns, weights, self.dtypes)
        shapes = tuple(tuple(self.own[key].shape) for key in conversion.targets)
        kinds = tuple(source.kind for source in sources)
        key = (id(conversion.converter), conversion.patterns if conversion.converter else (), kinds, shapes)
        if key not in self.recorded:
            recorded = extract_ir(_Computing(conversion, sources, self.model).eval(), ())
            recorded.erase([node for node in recorded.nodes if not node.outputs])  # assertions of dtypes
            self.recorded[key] = without_restacking(recorded)
        found = self.recorded[key], [key for source in sources for key in source.tensors]
        return self.graphs.setdefault(conversion.first, found)


def _quantized(
    model: Any, groups: Iterable[Conversion], stored: Mapping[str, Tensor], headers: Mapping[str, Weight] | None
) -> dict[str, StoredWeight]:
    """Return the quantised weights of a checkpoint, by the keys that they would have as floats.

    Which weights are quantised follows from the configuration or, if headers are given, from the tensors themselves.
    """
    quantization = quantization_of(model)
    if quantization is None:
        return {}
    found: dict[str, StoredWeight] = {}
    for group in groups:
        module = model.get_submodule(group.first.rpartition(".")[0])
        for key in group.sources:
            if stored[key].dim() < 2 or not quantization.is_stored(key, group.first, module):
                continue
            weight = quantization.store(key, stored[key])
            if headers is not None:
                if not weight.tensors.keys() <= headers.keys():
                    continue
                weight = replace(
                    weight, tensors={key: _as_in(headers, key, kept) for key, kept in weight.tensors.items()}
                )
            found[key] = weight
    if not found:
        raise ExportError(f"no weight of {type(model).__name__} is quantised as its quantization_config says")
    return found


def _as_in(headers: Mapping[str, Weight], key: str, tensor: Tensor) -> Tensor:
    """Return a tensor on meta with the dtype that a checkpoint has; floats only, so that codes stay as published."""
    dtype = headers[key].dtype
    return tensor.to(dtype) if dtype.is_floating_point and tensor.dtype.is_floating_point else tensor


def _groups(model: Any, own: Mapping[str, Tensor], stored: Mapping[str, Tensor], loading: Any) -> list[Conversion]:
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
        order = {pattern: at for at, pattern in enumerate(dict.fromkeys(pattern for _, pattern, _ in members))}
        # those of one pattern together, as the converter collects them
        members.sort(key=lambda member: order[member[1]])
        _, patterns, sources = zip(*members, strict=True)
        group = Conversion(converter, target, patterns, sources, (target,))
        if converter is not None:
            made = group.run([stored[key] for key in sources], model)
            group = replace(group, targets=tuple(made))
            wrong = [key for key, tensor in made.items() if key not in own or own[key].shape != tensor.shape]
            if wrong:
                raise ExportError(
                    f"the conversion of {sources[0]!r} does not return {wrong[0]!r} in the shape of the model"
                )
        groups.append(group)
    return groups


def _transforms(model: Any, loading: Any) -> list[Any]:
    """Return the conversions of a model: those that loaded it, or those of its architecture."""
    loaded = getattr(model, "_weight_conversions", None)
    if loaded is not None:
        return list(deepcopy(loaded))
    from transformers.conversion_mapping import get_model_conversion_mapping

    found = get_model_conversion_mapping(model, add_legacy=False)
    prefixes = getattr(loading, "PrefixChange", ())  # older transformers have none
    return [each for each in found if not isinstance(each, prefixes)]


class _Computing(nn.Module):
    """A conversion as a model whose parameters are the tensors of the checkpoint."""

    def __init__(self, conversion: Conversion, sources: Sequence[Source], model: Any) -> None:
        super().__init__()
        tensors = (tensor for source in sources for tensor in source.tensors.values())
        self.tensors = nn.ParameterList(nn.Parameter(tensor, requires_grad=False) for tensor in tensors)
        self._sources = sources
        self._convert = lambda weights: tuple(conversion.run(weights, model).values())

    def forward(self) -> tuple[Tensor, ...]:
        left: Iterator[Tensor] = iter(self.tensors)
        weights = [
            weight for source in self._sources for weight in source.weights(list(islice(left, len(source.tensors))))
        ]
        return self._convert(weights)
