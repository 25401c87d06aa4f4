"""Convert arguments of a call to the types of the operator's schema: lists, options, numbers, typed names."""

from __future__ import annotations

from typing import Any

from torch_ir.errors import ConversionError
from torch_ir.ir import Device, Dtype, Expr, Layout, MemoryFormat
from torch_ir.targets.mlir.function_text import Text
from torch_ir.targets.mlir.numbers import FLOAT, INT, Sizes, Value
from torch_ir.targets.mlir.syntax import DTYPE_CODES, FORMAT_CODES, LAYOUT_CODES

_CODES: dict[type, dict[str, int]] = {Dtype: DTYPE_CODES, Layout: LAYOUT_CODES, MemoryFormat: FORMAT_CODES}
_TENSOR_LISTS = {"Tensor": "vtensor", "Optional[Tensor]": "optional<vtensor>"}


class Operands:
    """Writes arguments into a text."""

    def __init__(self, text: Text, sizes: Sizes) -> None:
        self._text = text
        self._sizes = sizes

    def of(self, value: Any, kind: str) -> Value:
        """Return an argument as a value of the schema's type."""
        if isinstance(value, Value):
            return value
        if value is None:
            return self._text.constant(None)
        if kind.startswith("Optional["):
            return self.of(value, kind[len("Optional[") : -1])
        if kind.startswith("List["):
            element = kind[len("List[") : -1]
            items = [self.of(item, element) for item in (value if isinstance(value, (list, tuple)) else [value])]
            return self._text.list_of(items, _TENSOR_LISTS.get(element, element))
        if isinstance(value, Expr):
            return self._number(self._sizes.of(value), kind)
        if isinstance(value, Device):
            return self._text.device(value)
        if type(value) in _CODES:
            return self._code(value)
        if isinstance(value, complex):
            raise ConversionError("the torch dialect of MLIR has no complex constants")
        if kind == "float":
            value = float(value)
        elif kind in ("number", "int") and isinstance(value, bool):
            value = int(value)
        return self._number(self._text.constant(value), kind)

    def _number(self, value: Value, kind: str) -> Value:
        """Convert a number to the requested kind; a tensor becomes a 0-d tensor."""
        if kind == "float" and value.type == INT:
            return self._text.compute("torch.aten.Float.Scalar", [value], FLOAT)
        if kind == "Tensor":
            element = "f64" if value.type == FLOAT else "si64"
            return self._text.compute("torch.prim.NumToTensor.Scalar", [value], f"!torch.vtensor<[],{element}>")
        return value

    def _code(self, value: Any) -> Value:
        codes = _CODES[type(value)]
        if value not in codes:
            raise ConversionError(f"the torch dialect of MLIR has no {type(value).__name__.lower()} {value!s}")
        return self._text.constant(codes[value])
