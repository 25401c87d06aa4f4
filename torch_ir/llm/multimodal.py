"""The entry points of a model that reads more than text: its encoders, prefill over their results, and decode."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin

from torch_ir.capture.instrument import set_attribute
from torch_ir.entries.entry_feeds import plain_path
from torch_ir.errors import ExportError
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.graph.io_tree import Record, Slot, SparseRecord, leaves, rebuild
from torch_ir.llm.entry_points import Call, DecoderOnly, Example
from torch_ir.llm.generating_module import decoding_module
from torch_ir.llm.image_positions import POSITIONS, prompt_positions
from torch_ir.llm.joined_entries import MODALITIES, ROWS
from torch_ir.llm.placeholder_check import counted_placeholders
from torch_ir.ops.torch_types import TORCH_DTYPES

_GIVEN = "mm_encoder_outputs"  # the argument of forward for results of encoders


@dataclass
class Multimodal(DecoderOnly):
    """The calls of a model with encoders; `example` has the inputs that its processor returns."""

    example: Mapping[str, Any] = field(default_factory=dict)
    encoded: dict[str, IR] = field(default_factory=dict)  # graphs of the encoders, by modality

    def __post_init__(self) -> None:
        self.example = {name: value for name, value in self.example.items() if isinstance(value, Tensor)}
        if not self.example:
            return
        decoding_module(self.model)  # refuse before capture
        if "input_ids" not in self.example:
            raise ExportError(
                f"inputs of {type(self.model).__name__} have no input_ids; pass what its processor returns"
            )
        batch, length = self.example["input_ids"].shape
        if self.batch not in (None, batch):
            raise ExportError(f"batch is {self.batch}, but the inputs have a batch of {batch}")
        self.batch = batch
        read = {name for names in self.reads().values() for name in names}
        known = inspect.signature(type(self.model).forward).parameters
        unread = [name for name in self.example if name not in read and name not in known]
        if unread:
            raise ExportError(f"neither forward nor an encoder of {type(self.model).__name__} takes {unread[0]}")
        if self._fixed([name for name in self._rest() if not self._is_per_token(name)]):
            # a recording, which has the sizes of its example
            self.prompt = self.prompt or length

    def reads(self) -> dict[str, list[str]]:
        """Return the inputs that each encoder reads, by modality, pixels or sound first; others are left out."""
        found: dict[str, list[str]] = {}
        for modality in MODALITIES:
            function = getattr(self._owner(modality), _getter(modality), None)
            names = [] if function is None else list(inspect.signature(function).parameters)
            if names and names[0] in self.example:
                found[modality] = [name for name in names if name in self.example]
        return found

    def encoder(self, modality: str, *, is_fixed: bool = True) -> Call:
        """Return the call of one encoder with its projector; not `is_fixed`, no values are part of the capture."""
        names = self.reads()[modality]
        function = getattr(self._owner(modality), _getter(modality))

        def encode(forward: Callable[..., Any], **inputs: Any) -> Any:
            return function(**inputs, return_dict=True)

        return self._with_fixed(encode, {}, names, is_fixed)

    def tower(self, modality: str) -> str:
        """Return the path of the module that encodes a modality, without the projector after it; "" if unknown."""
        module = self._owner(modality).get_encoder(modality=modality)
        return next((name for name, each in self.model.named_modules() if each is module), "")

    def prefill(self, *, is_fixed: bool = True) -> Call:
        """Return the call of prefill; not `is_fixed`, no values are part of the capture."""
        examples: dict[str, Any] = {"input_ids": self._ids("seq", self.prompt)}
        if self.padding:
            examples["attention_mask"] = self._ids("seq", self.prompt)
        if self.has_positions:
            example = self._example_positions()
            sizes = [*(("", size) for size in example.shape[:-2]), ("batch", self.batch), ("seq", self.prompt)]
            examples["position_ids"] = self._example(example.dtype, *sizes)
        rest = self._rest()
        for name in [name for name in rest if self._is_per_token(name)]:
            rest.remove(name)
            examples[name] = self._row_example(name, ("seq", self.prompt))
        for modality, graph in self.encoded.items():
            tensors = zip(feature_names(graph), graph.graph_outputs, strict=True)
            examples[modality] = {
                name: self._example(TORCH_DTYPES[tensor.dtype], *_sizes(modality, tensor)) for name, tensor in tensors
            }
        return self._with_fixed(self._prefill, examples, rest, is_fixed)

    def decode(self, prefill: IR) -> Call:
        examples = self._decode_examples(prefill)
        if self.has_positions:
            given = next(tensor for tensor in prefill.graph_inputs if tensor.name == "position_ids")
            rows = [("", size) for size in given.shape[:-2]]
            examples["position_ids"] = self._example(TORCH_DTYPES[given.dtype], *rows, ("batch", self.batch), ("", 1))
        examples |= {name: self._row_example(name, ("", 1)) for name in ROWS if name in self.example}
        return self._call(self._decode, examples)

    def _row_example(self, name: str, rows: tuple[str, int | None]) -> Example:
        """Return an example of an input with a row for each token."""
        rest = [("", size) for size in self.example[name].shape[2:]]
        return self._example(self.example[name].dtype, ("batch", self.batch), rows, *rest)

    @property
    def has_positions(self) -> bool:
        """Whether the model counts positions in its own way, which depends on images: they are inputs of the graphs."""
        return getattr(type(self.model), POSITIONS) is not getattr(GenerationMixin, POSITIONS)

    def _example_positions(self) -> Tensor:
        """Return positions, of which the rows and the dtype count: of the example, or of text if it has no values."""
        if any(each.is_meta and not each.is_floating_point() for each in self.example.values()):
            return prompt_positions(self.model, {"input_ids": torch.ones(2, 3, dtype=torch.int64)})
        return prompt_positions(self.model, self.example)

    def _prefill(self, forward: Callable[..., Any], **inputs: Any) -> Any:
        ids, mask, positions = (inputs.pop(name, None) for name in ("input_ids", "attention_mask", "position_ids"))
        if positions is None:
            positions = self._positions(ids, mask)
        features = {modality: self._features(modality, inputs.pop(modality)) for modality in self.encoded}
        official = {
            modality: found for modality, found in features.items() if modality != "audio" and self._takes_features
        }
        if official:
            inputs[_GIVEN] = official
        others = {modality: found for modality, found in features.items() if modality not in official}
        entry = forward.args[0] if isinstance(forward, partial) else self.model  # a copy of the model, at capture
        with self._replaced_encoders(others, entry), counted_placeholders(entry.base_model):
            return self._step(forward, self.caches.empty(), ids, mask, positions, {**self._unused(forward), **inputs})

    def _decode(
        self, forward: Callable[..., Any], cache: Mapping[str, Tensor], position: Tensor | None = None, **inputs: Any
    ) -> Any:
        speaker = decoding_module(self.model)
        if not self.has_positions and speaker is self.model:
            return super()._decode(forward, cache, position, **inputs)
        if speaker is not self.model:  # it counts positions itself
            forward = partial(type(speaker).forward, speaker)
        ids, mask, positions = (inputs.pop(name, None) for name in ("input_ids", "attention_mask", "position_ids"))
        held = self.caches.filled(cache, position)
        return self._changed(self._step(forward, held, ids, mask, positions, inputs))

    def _features(self, modality: str, tensors: Mapping[str, Tensor]) -> Any:
        """Return what the encoder of a model returns, with these tensors."""
        found = rebuild(self.encoded[modality].output_tree, list(tensors.values()))
        return SparseRecord(found) if isinstance(found, Record) else found

    @contextmanager
    def _replaced_encoders(self, features: Mapping[str, Any], entry: Any) -> Iterator[None]:
        """Make the encoders of a model or a copy of it return these features for any arguments."""
        with ExitStack() as stack:
            for modality, found in features.items():
                owner = self._owner(modality)
                owner = entry if owner is self.model else owner
                stack.enter_context(set_attribute(owner, _getter(modality), partial(_given, found)))
            yield

    @property
    def _takes_features(self) -> bool:
        return _GIVEN in inspect.signature(type(self.model).forward).parameters

    def _owner(self, modality: str) -> Any:
        """Return the module whose forward calls the encoder: the model without its head, or the model itself."""
        base = self.model.base_model
        return base if hasattr(base, _getter(modality)) else self.model

    def _rest(self) -> list[str]:
        """Return the inputs of prefill besides tokens, mask, positions and features.

        Encoders that `generate` runs before prefill keep their inputs; others are called by forward, which gets them.
        """
        kept = {"input_ids", "attention_mask", "position_ids"}
        for modality, names in self.reads().items():
            if modality != "audio" and self._takes_features:
                kept.update(names)
        return [name for name in self.example if name not in kept]

    def _unused(self, forward: Callable[..., Any]) -> dict[str, None]:
        """Return the parameters without defaults, such as pixels, that forward does not read if it gets features."""
        encoded = {name for names in self.reads().values() for name in names}
        known = inspect.signature(forward).parameters.values()
        return {each.name: None for each in known if each.default is each.empty and each.name in encoded}

    def _is_per_token(self, name: str) -> bool:
        ids, tensor = self.example["input_ids"], self.example[name]
        return name in ROWS or (tensor.shape == ids.shape and not tensor.is_floating_point())

    def _fixed(self, names: list[str]) -> dict[str, Tensor]:
        """Return the inputs whose values are part of the capture: whole numbers, such as the sizes of images.

        What an encoder encodes is not: sound may be given as codes.
        """
        encoded = {read[0] for read in self.reads().values()}
        tensors = {name: self.example[name] for name in names if name not in encoded}
        return {name: each for name, each in tensors.items() if not (each.is_floating_point() or each.is_meta)}

    def _with_fixed(
        self, function: Callable[..., Any], examples: Mapping[str, Any], names: list[str], is_fixed: bool
    ) -> Call:
        """Return a call with further inputs of the example, some of them fixed."""
        fixed = self._fixed(names) if is_fixed else {}
        given = {name: Example(self.example[name].to("meta"), {}) for name in names}
        call = self._call(function, {**examples, **given})
        varying = {} if fixed else call.dynamic_shapes
        return call._replace(
            inputs={name: each for name, each in call.inputs.items() if name not in fixed},
            dynamic_shapes=varying,
            fixed=fixed,
        )


def _given(value: Any, *args: Any, **kwargs: Any) -> Any:
    return value


def feature_names(graph: IR) -> list[str]:
    """Return names for the outputs of an encoder by their place in its output object: `pooler_output.0`."""
    paths = [path for path, leaf in leaves(graph.output_tree) if isinstance(leaf, Slot)]
    return [plain_path(path) or "features" for path in paths]


def _sizes(modality: str, tensor: TensorMeta) -> Iterator[tuple[str, int | None]]:
    """Yield the sizes of features; those that depend on the data get a name in prefill."""
    for size in tensor.shape:
        if isinstance(size, int):
            yield "", size
        else:
            yield f"{modality}_{''.join(each if each.isalnum() else '_' for each in size)}", None


def _getter(modality: str) -> str:
    return f"get_{modality}_features"
