"""Convert the cache of a model to and from a dict of tensors such as `layers.0.key`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor
from transformers import __version__, cache_utils
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache, LinearAttentionLayer

from torch_ir.errors import ExportError
from torch_ir.llm.cache_layers import (
    FixedLayer,
    GrowingLayer,
    HybridFixedLayer,
    HybridGrowingLayer,
    IndexedFixedLayer,
    IndexedGrowingLayer,
    RecurrentLayer,
)


class LayerClasses(NamedTuple):
    """The classes for one kind of layer of transformers."""

    growing: type
    fixed: type


_ATTENTION = LayerClasses(GrowingLayer, FixedLayer)  # the mask also applies a sliding window
_HYBRID = LayerClasses(HybridGrowingLayer, HybridFixedLayer)
_BY_NAME = {
    "DynamicLayer": _ATTENTION,
    "DynamicSlidingWindowLayer": _ATTENTION,
    "DynamicIndexedLayer": LayerClasses(IndexedGrowingLayer, IndexedFixedLayer),  # of transformers 5.11 and newer
    "LinearAttentionLayer": LayerClasses(RecurrentLayer, RecurrentLayer),
    "LinearAttentionAndFullAttentionLayer": _HYBRID,
    "LinearAttentionAndSlidingWindowAttentionLayer": _HYBRID,  # likewise, not in every version
}
_CLASSES: dict[type, LayerClasses] = {
    getattr(cache_utils, name): classes for name, classes in _BY_NAME.items() if hasattr(cache_utils, name)
}


class LayerKind(NamedTuple):
    """The classes of one layer, and its number of recurrent states."""

    classes: LayerClasses
    states: int = 0


@dataclass(frozen=True)
class Caches:
    """The layers of a model's cache."""

    kinds: tuple[LayerKind, ...]
    length: int | None = None  # of a fixed cache
    has_cross: bool = False
    over_images: frozenset[int] = frozenset()  # layers that attend to the image, whose entries no token changes

    @classmethod
    def of(cls, config: Any, length: int | None) -> Caches:
        """Return the cache layers of a model; raise ExportError for unsupported kinds."""
        try:
            layers = DynamicCache(config=config.get_text_config(decoder=True)).layers
        except KeyError as error:  # a kind that only the model's own module registers
            raise ExportError(f"{config.model_type} has layers of kind {error}, which is not supported") from None
        for index, layer in enumerate(layers):
            if type(layer) not in _CLASSES:
                kind = type(layer).__name__
                raise ExportError(f"layer {index} of {config.model_type} keeps a {kind}, which is not supported")
            if isinstance(layer, LinearAttentionLayer) and not hasattr(layer, "number_of_states"):
                raise ExportError(
                    f"layer {index} of {config.model_type} keeps recurrent states, which needs transformers 5.14 or "
                    f"newer; {__version__} is installed"
                )
        if not config.is_encoder_decoder:
            states = [getattr(layer, "number_of_states", 0) for layer in layers]
            kinds = [LayerKind(_CLASSES[type(layer)], each) for layer, each in zip(layers, states, strict=True)]
            crossing = getattr(config.get_text_config(decoder=True), "cross_attention_layers", None) or ()
            return cls(tuple(kinds), length, over_images=frozenset(crossing))
        deep = getattr(config, "num_decoder_layers", None) or getattr(config, "decoder_layers", None) or len(layers)
        return cls((LayerKind(_ATTENTION),) * deep, length, has_cross=True)

    @property
    def has_states(self) -> bool:
        """Whether a layer keeps recurrent states."""
        return any(kind.states for kind in self.kinds)

    def is_constant(self, name: str) -> bool:
        """Whether decode leaves a tensor of the cache as it is."""
        return ".cross." in name or int(name.split(".")[1]) in self.over_images

    def empty(self) -> Cache:
        return self._cache(*self._layers())

    def filled(self, tensors: Mapping[str, Tensor], position: Tensor | None) -> Cache:
        """Return a cache with these tensors, filled up to `position` if it has a fixed length."""
        own, cross = self._layers()
        for place, layer in self._named(own, cross):
            if f"{place}.key" in tensors or not self.is_constant(f"{place}.key"):  # else there is no image
                layer.hold(tensors, place, position)
        return self._cache(own, cross)

    def tensors(self, cache: Any) -> dict[str, Tensor]:
        """Return the tensors of a cache by name."""
        own = cache.self_attention_cache.layers if self.has_cross else cache.layers
        cross = cache.cross_attention_cache.layers if self.has_cross else []
        found: dict[str, Tensor] = {}
        for place, layer in self._named(own, cross):
            found |= layer.held(place)
        return found

    def _layers(self) -> tuple[list[Any], list[Any]]:
        own = [
            GrowingLayer() if index in self.over_images else self._layer(kind) for index, kind in enumerate(self.kinds)
        ]
        return own, [GrowingLayer() for _ in self.kinds if self.has_cross]

    def _named(self, own: list[Any], cross: list[Any]) -> list[tuple[str, Any]]:
        """Return the layers with their names, in order."""
        if not self.has_cross:
            return [(f"layers.{index}", layer) for index, layer in enumerate(own)]
        return [
            (f"layers.{index}.{part}", layer)
            for index, pair in enumerate(zip(own, cross, strict=True))
            for part, layer in zip(("self", "cross"), pair, strict=True)
        ]

    def _layer(self, kind: LayerKind) -> Any:
        states = {"number_of_states": kind.states} if kind.states else {}
        if self.length is None:
            return kind.classes.growing(**states)
        return kind.classes.fixed(max_cache_len=self.length, **states)

    def _cache(self, own: list[Any], cross: list[Any]) -> Cache:
        if not self.has_cross:
            return Cache(layers=own)
        return EncoderDecoderCache(Cache(layers=own), Cache(layers=cross))
