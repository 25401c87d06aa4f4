"""The reply of an isolated run, parsed as untrusted input."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import torch

from torch_ir.errors import ExecutionError, GraphError, GuardError, TorchIRError, WeightLoadError
from torch_ir.ir import TensorData, TensorMeta, evaluate
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.ops.tensor_data import to_tensor
from torch_ir.run.compiled_plan import Sizes

_LINE = re.compile(r'File "(<torch_ir program \d+>)", line (\d+)')
_LONGEST = 4000  # characters of a message
_ERRORS: dict[str, type[TorchIRError]] = {kind.__name__: kind for kind in (GuardError, WeightLoadError)}


class Reply:
    """The records of a reply, and the bytes after the last of them."""

    def __init__(self, stdout: bytearray) -> None:
        self.last: dict[str, Any] = {}
        self._places: dict[str, Any] = {}
        start = 0
        while not self.is_whole and (end := stdout.find(b"\n", start)) >= 0:
            self._take(stdout[start:end])
            start = end + 1
        self._raw = memoryview(stdout)[start:]

    @property
    def is_whole(self) -> bool:
        """Whether the reply says how the run ended."""
        return "outputs" in self.last or "error" in self.last

    def _take(self, line: bytearray) -> None:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(record, dict):
            self.last = record
            if isinstance(record.get("places"), dict):
                self._places.update(record["places"])

    def place(self, stderr: str) -> str:
        """Return the node at which a run was, from the traceback of a crash."""
        found = _LINE.search(stderr)
        lines = self._places.get(found[1]) if found else None
        node = lines.get(found[2]) if found and isinstance(lines, dict) else None
        return f" in {shortened(node)}" if node else ""

    def outputs(self, declared: Sequence[TensorMeta], sizes: Sizes) -> tuple[Any, ...]:
        """Return the outputs if they match the declared ones; raise the error that the run ended with."""
        if "error" in self.last:
            raise _ERRORS.get(str(self.last.get("kind")), ExecutionError)(shortened(self.last["error"]))
        records = self.last["outputs"]
        if not isinstance(records, list) or len(records) != len(declared):
            raise ExecutionError(f"the isolated run did not return the {len(declared)} outputs of the graph")
        found = tuple(self._output(*pair, sizes) for pair in zip(declared, records, strict=True))
        if self._raw:
            raise ExecutionError("the isolated run returned more than the outputs of the graph")
        return found

    def _output(self, tensor: TensorMeta, record: Any, sizes: Sizes) -> Any:
        if isinstance(record, list) and len(record) == 2 and _fits(tensor, record[0], record[1], sizes):
            return self._tensor(tensor, record[1])
        if tensor.shape == () and type(record) in (int, bool):
            return record
        if tensor.shape == () and isinstance(record, dict) and isinstance(record.get("float"), str):
            return _float(record["float"])
        declared = f"{tensor.dtype}{list(tensor.shape)}"
        raise ExecutionError(f"output {tensor.name!r} should be {declared}, but {shortened(record)} was returned")

    def _tensor(self, tensor: TensorMeta, shape: list[int]) -> torch.Tensor:
        size = DTYPES[tensor.dtype] * math.prod(shape)
        raw, self._raw = self._raw[:size], self._raw[size:]
        try:
            return to_tensor(TensorData(tuple(shape), tensor.dtype, bytes(raw)))
        except GraphError as error:
            raise ExecutionError(f"output {tensor.name!r} was returned damaged: {error}") from None


def _fits(tensor: TensorMeta, dtype: Any, shape: Any, sizes: Sizes) -> bool:
    """Whether a described tensor matches the declared one, as far as its sizes are known."""
    if dtype != tensor.dtype or not isinstance(shape, list) or len(shape) != len(tensor.shape):
        return False
    if any(type(size) is not int or size < 0 for size in shape):
        return False
    return all(size == known_size(dim, sizes, size) for dim, size in zip(tensor.shape, shape, strict=True))


def known_size(dim: int | str, sizes: Sizes, default: int) -> int:
    """Return a declared size as a number, or `default` if it is data-dependent."""
    return int(evaluate(dim, sizes)) if sizes.keys() >= set(names_in(dim)) else default


def _float(text: str) -> float:
    try:
        return float.fromhex(text)
    except (ValueError, OverflowError):
        raise ExecutionError(f"the isolated run returned an invalid number {shortened(text)!r:.60}") from None


def shortened(text: Any) -> str:
    """Shorten untrusted text, and replace control characters by `?`."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in str(text)[:_LONGEST])
