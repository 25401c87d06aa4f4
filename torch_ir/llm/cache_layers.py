"""Cache layers for `transformers` with external tensors and without in-place writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer, StaticLayer


class GrowingLayer(DynamicLayer):
    """Keys and values that grow with every call."""

    keys: Any
    values: Any

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if self.is_initialized:
            return super().update(key_states, value_states)
        self.lazy_initialization(key_states, value_states)
        self.keys, self.values = key_states, value_states
        return key_states, value_states

    def get_seq_length(self) -> Any:
        """Return the number of tokens, also of an empty cache, without asking whether it is empty."""
        return self.keys.shape[-2] if self.is_initialized else 0

    def hold(self, tensors: Mapping[str, Tensor], place: str, position: Tensor | None = None) -> None:
        """Start with these tensors."""
        self.keys, self.values = tensors[f"{place}.key"], tensors[f"{place}.value"]
        self.lazy_initialization(self.keys, self.values)

    def held(self, place: str) -> dict[str, Tensor]:
        """Return the current tensors by name."""
        return {f"{place}.key": self.keys, f"{place}.value": self.values} if self.is_initialized else {}


class FixedLayer(StaticLayer):
    """Keys and values in buffers of fixed length; every call writes at its position.

    Prefill attends to its own keys and values, as `transformers` does: the rest of the buffers is empty.
    """

    keys: Any
    values: Any
    cumulative_length: Any
    is_prefill = True  # until it holds tensors

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        self.keys, self.values = (
            states.new_zeros(*states.shape[:2], self.max_cache_len, states.shape[-1])
            for states in (key_states, value_states)
        )

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        count = key_states.shape[-2]
        places = torch.arange(count, device=self.device) + self.cumulative_length
        self.cumulative_length = self.cumulative_length + count
        self.keys = self.keys.index_copy(2, places, key_states)
        self.values = self.values.index_copy(2, places, value_states)
        return (key_states, value_states) if self.is_prefill else (self.keys, self.values)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys, and the position of the first."""
        return (query_length if self.is_prefill else self.max_cache_len), 0

    def hold(self, tensors: Mapping[str, Tensor], place: str, position: Tensor | None = None) -> None:
        """Start with these tensors, of which `position` entries are in use."""
        self.keys, self.values = tensors[f"{place}.key"], tensors[f"{place}.value"]
        self.dtype, self.device, self.is_initialized = self.keys.dtype, self.keys.device, True
        self.cumulative_length, self.is_prefill = position, False

    def held(self, place: str) -> dict[str, Tensor]:
        """Return the current tensors by name."""
        return {f"{place}.key": self.keys, f"{place}.value": self.values} if self.is_initialized else {}


class RecurrentLayer(LinearAttentionLayer):
    """States of convolutions and recurrences, for linear attention and state-space models."""

    dtype: Any
    device: Any

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs: Any
    ) -> Tensor:
        before = self.conv_states[state_idx]
        size = before.shape[-1] if before is not None else conv_kernel_size or conv_states.shape[-1]
        if before is not None:
            full = torch.cat([before, conv_states], dim=-1)
        elif conv_states.shape[-1] < size:
            full = pad(conv_states, (size - conv_states.shape[-1], 0))
        else:
            full = conv_states
        self.conv_states[state_idx] = full[..., -size:]
        self.is_conv_states_initialized[state_idx] = self.has_previous_state[state_idx] = True
        return full

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        self.recurrent_states[state_idx] = recurrent_states
        self.is_recurrent_states_initialized[state_idx] = True
        return recurrent_states

    def hold(self, tensors: Mapping[str, Tensor], place: str, position: Tensor | None = None) -> None:
        """Start with these tensors."""
        for index in range(self.number_of_states):
            if (state := tensors.get(f"{place}.conv.{index}")) is not None:
                self.conv_states[index], self.is_conv_states_initialized[index] = state, True
                self.dtype, self.device = state.dtype, state.device
            if (state := tensors.get(f"{place}.recurrent.{index}")) is not None:
                self.recurrent_states[index], self.is_recurrent_states_initialized[index] = state, True
            self.has_previous_state[index] = True

    def held(self, place: str) -> dict[str, Tensor]:
        """Return the current tensors by name."""
        named = {"conv": self.conv_states, "recurrent": self.recurrent_states}
        states = {f"{place}.{kind}.{index}": state for kind, table in named.items() for index, state in table.items()}
        return {name: state for name, state in states.items() if state is not None}


class HybridGrowingLayer(GrowingLayer, RecurrentLayer):  # type: ignore[misc]  # the first base initialises, lazily
    """Keys and values that grow with every call, and recurrent states, in one layer."""

    def __init__(self, number_of_states: int) -> None:
        GrowingLayer.__init__(self)
        RecurrentLayer.__init__(self, number_of_states)

    def hold(self, tensors: Mapping[str, Tensor], place: str, position: Tensor | None = None) -> None:
        """Start with these tensors."""
        GrowingLayer.hold(self, tensors, place, position)
        RecurrentLayer.hold(self, tensors, place, position)

    def held(self, place: str) -> dict[str, Tensor]:
        """Return the current tensors by name."""
        return GrowingLayer.held(self, place) | RecurrentLayer.held(self, place)


class HybridFixedLayer(FixedLayer, RecurrentLayer):  # type: ignore[misc]  # the first base initialises, lazily
    """Keys and values in buffers of fixed length, and recurrent states, in one layer."""

    def __init__(self, max_cache_len: int, number_of_states: int) -> None:
        FixedLayer.__init__(self, max_cache_len)
        RecurrentLayer.__init__(self, number_of_states)

    def hold(self, tensors: Mapping[str, Tensor], place: str, position: Tensor | None = None) -> None:
        """Start with these tensors, of which `position` entries are in use."""
        FixedLayer.hold(self, tensors, place, position)
        RecurrentLayer.hold(self, tensors, place, position)

    def held(self, place: str) -> dict[str, Tensor]:
        """Return the current tensors by name."""
        return FixedLayer.held(self, place) | RecurrentLayer.held(self, place)


class IndexedGrowingLayer(GrowingLayer):
    """Keys, values and the keys of an indexer, which selects the tokens to attend to."""

    indexer_keys: Tensor | None = None

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        """Append keys to those of the indexer, of shape [batch, tokens, width]."""
        before = self.indexer_keys
        self.indexer_keys = indexer_key_states if before is None else torch.cat([before, indexer_key_states], dim=1)
        return self.indexer_keys

    def hold(self, tensors: Mapping[str, Tensor], place: str, position: Tensor | None = None) -> None:
        """Start with these tensors."""
        super().hold(tensors, place, position)
        self.indexer_keys = tensors.get(f"{place}.index")

    def held(self, place: str) -> dict[str, Tensor]:
        """Return the current tensors by name."""
        keys = self.indexer_keys
        return super().held(place) | ({} if keys is None else {f"{place}.index": keys})


class IndexedFixedLayer(FixedLayer):
    """Keys, values and the keys of an indexer in buffers of fixed length."""

    indexer_keys: Tensor | None = None
    indexer_position: Any = 0

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        """Write keys at the position into those of the indexer, of shape [batch, cache length, width]."""
        batch, count, width = indexer_key_states.shape
        if self.indexer_keys is None:
            self.indexer_keys = indexer_key_states.new_zeros(batch, self.max_cache_len, width)
        places = torch.arange(count, device=indexer_key_states.device) + self.indexer_position
        self.indexer_position = self.indexer_position + count
        self.indexer_keys = self.indexer_keys.index_copy(1, places, indexer_key_states)
        return indexer_key_states if self.is_prefill else self.indexer_keys

    def hold(self, tensors: Mapping[str, Tensor], place: str, position: Tensor | None = None) -> None:
        """Start with these tensors, of which `position` entries are in use."""
        super().hold(tensors, place, position)
        self.indexer_keys, self.indexer_position = tensors.get(f"{place}.index"), position

    def held(self, place: str) -> dict[str, Tensor]:
        """Return the current tensors by name."""
        keys = self.indexer_keys
        return super().held(place) | ({} if keys is None else {f"{place}.index": keys})
