"""Convert the cache of a model to and from a dict of tensors such as `layers.0.key`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
    LinearAttentionLayer,
)

from torch_ir.errors import ExportError
from torch_ir.llm.cache_layers import FixedLayer, GrowingLayer, RecurrentLayer

_ATTENTION = (DynamicLayer, DynamicSlidingWindowLayer)  # the mask also applies a sliding window


@dataclass(frozen=True)
class Caches:
    """The layers of a model's cache: the number of states of each, 0 for keys and values."""

    states: tuple[int, ...]
    length: int | None = None  # of a fixed cache
    has_cross: bool = False

    @classmethod
    def of(cls, config: Any, length: int | None) -> Caches:
        """Return the cache layers of a model; raise ExportError for unsupported kinds."""
        layers = DynamicCache(config=config.get_text_config(decoder=True)).layers
        for index, layer in enumerate(layers):
            if type(layer) not in (*_ATTENTION, LinearAttentionLayer):
                kind = type(layer).__name__
                raise ExportError(f"layer {index} of {config.model_type} keeps a {kind}, which is not supported")
        if not config.is_encoder_decoder:
            return cls(tuple(getattr(layer, "number_of_states", 0) for layer in layers), length)
        deep = getattr(config, "num_decoder_layers", None) or getattr(config, "decoder_layers", None) or len(layers)
        return cls((0,) * deep, length, has_cross=True)

    def empty(self) -> Cache:
        return self._cache(*self._layers())

    def filled(self, tensors: Mapping[str, Tensor], position: Tensor | None) -> Cache:
        """Return a cache with these tensors, filled up to `position` if it has a fixed length."""
        own, cross = self._layers()
        for place, layer in self._named(own, cross):
            layer.hold(tensors, place, position)
        return self._cache(own, cross)

    def tensors(self, cache: Any, *, with_cross: bool = True) -> dict[str, Tensor]:
        """Return the tensors of a cache by name."""
        own = cache.self_attention_cache.layers if self.has_cross else cache.layers
        cross = cache.cross_attention_cache.layers if self.has_cross else []
        found: dict[str, Tensor] = {}
        for place, layer in self._named(own, cross):
            if with_cross or not place.endswith(".cross"):
                found |= layer.held(place)
        return found

    def _layers(self) -> tuple[list[Any], list[Any]]:
        return list(map(self._layer, self.states)), [GrowingLayer() for _ in self.states if self.has_cross]

    def _named(self, own: list[Any], cross: list[Any]) -> list[tuple[str, Any]]:
        """Return the layers with their names, in order."""
        if not self.has_cross:
            return [(f"layers.{index}", layer) for index, layer in enumerate(own)]
        return [
            (f"layers.{index}.{part}", layer)
            for index, pair in enumerate(zip(own, cross, strict=True))
            for part, layer in zip(("self", "cross"), pair, strict=True)
        ]

    def _layer(self, states: int) -> Any:
        if states:
            return RecurrentLayer(states)
        return GrowingLayer() if self.length is None else FixedLayer(self.length)

    def _cache(self, own: list[Any], cross: list[Any]) -> Cache:
        if not self.has_cross:
            return Cache(layers=own)
        return EncoderDecoderCache(Cache(layers=own), Cache(layers=cross))
