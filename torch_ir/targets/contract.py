"""Contract: what a device can run, described in a file before any code for it exists.

name = "npu"
dtypes = ["float32", "float16"]
static = true

[[ops]]
op = ["aten.relu", "aten.add.Tensor", "aten.*pool2d*"]

[[ops]]
op = "aten.conv2d"
attrs = { groups = 1, stride = [1, 2], padding = { max = 3 } }
require = ["weight.shape[0] % 8 == 0", "weight.shape[2] <= 7"]
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from torch_ir.errors import SerializationError, suggestion
from torch_ir.formats.table_file import read_table
from torch_ir.ir import OpNode
from torch_ir.ir.checks.limits import Limits
from torch_ir.ir.json.json_fields import allow_keys, field, optional, read_dtype, texts, typed
from torch_ir.targets.contract_limits import Condition, Limit, tensors_of

NOT_LISTED = "not in the contract"
_KEYS = frozenset(("name", "ops", "dtypes", "rank", "static"))
_ROW_KEYS = frozenset(("op", "dtypes", "rank", "static", "attrs", "absent", "require"))
_SIZE = Limits(file_bytes=1 << 24)
_OP_NAME = re.compile(r"[\w*?]+(\.[\w*?]+)+")
Dtypes = Mapping[str, tuple[str, ...]]  # by argument; "" applies to all others


class _Common(NamedTuple):
    """Defaults for all rows."""

    dtypes: Dtypes
    rank: Limit | None
    static: bool


@dataclass(frozen=True)
class Row:
    """A set of operators with the limits under which the device runs them."""

    ops: tuple[str, ...]
    dtypes: Dtypes
    rank: Limit | None
    static: bool
    attrs: Mapping[str, Limit]
    absent: tuple[str, ...]
    conditions: tuple[Condition, ...]

    def names(self, op_type: str) -> bool:
        """Whether the row covers an operator: by its name, its name without overload, or a pattern with `*` and `?`."""
        base = op_type.rpartition(".")[0]
        return any(name in (op_type, base) or fnmatchcase(op_type, name) for name in self.ops)

    def check_arguments(self, path: str) -> None:
        """Raise SerializationError at the first name that is not an argument of its operators; imports torch."""
        from torch_ir.ops.known_names import argument_objection

        if any(set("*?") & set(name) for name in self.ops):
            return
        own = [name for name in self.dtypes if name and name.partition(".")[0] != "output"]
        for key, names in (("dtypes", own), ("attrs", [*self.attrs]), ("absent", [*self.absent])):
            if problem := argument_objection(self.ops, names):
                raise SerializationError(problem, f"{path}.{key}", rule="R11")

    def why_not(self, node: OpNode) -> str:
        """Return the first property of a node that the row does not allow, or ""."""
        return next(self._objections(node), "")

    def _objections(self, node: OpNode) -> Iterator[str]:
        for name, tensor in tensors_of(node):
            dtypes = self.dtypes.get(name, self.dtypes.get("", ()))
            if dtypes and tensor.dtype not in dtypes:
                yield f"{name} is {tensor.dtype}"
            if self.rank is not None and not self.rank.admits(len(tensor.shape)):
                yield f"{name} has rank {len(tensor.shape)}, not {self.rank}"
            if self.static and not tensor.is_static:
                yield f"{name} has symbolic sizes: {', '.join(dim for dim in tensor.shape if isinstance(dim, str))}"
        for name in self.absent:
            if name in node.args or node.attrs.get(name) is not None or node.elements(name):
                yield f"{name} is given"
        for name, limit in self.attrs.items():
            if name not in node.attrs:
                yield f"it has no attribute {name}"
            elif not limit.admits(node.attrs[name]):
                yield f"{name} is {node.attrs[name]}, not {limit}"
        yield from filter(None, (condition.why_not(node) for condition in self.conditions))


class Contract:
    """Capabilities of a device: operators by name, each with limits on dtypes, ranks, attributes and shapes.

    An item of `ops` is a name, or a mapping with the keys of `[[ops]]` in a file. If several cover one operator, a node
    must satisfy one of them. `dtypes`, `rank` and `static` are defaults for all items.
    """

    def __init__(
        self,
        name: str,
        ops: Iterable[str | Mapping[str, Any]],
        *,
        dtypes: Iterable[str] | None = None,
        rank: int | Sequence[int] | Mapping[str, int] | None = None,
        static: bool = False,
    ) -> None:
        self.name = typed(name, str, "name")
        common = _Common(_read_dtypes(dtypes, "dtypes"), _read_limit(rank, "rank"), typed(static, bool, "static"))
        if isinstance(ops, (str, Mapping)) or not isinstance(ops, Iterable):
            raise SerializationError(f"expected a list of operators, found {ops!r:.60}", "ops", rule="R4")
        self.rows = tuple(_read_row(item, common, f"ops[{index}]") for index, item in enumerate(ops))
        if not self.rows:
            raise SerializationError("no operator is listed", "ops", rule="R4")
        self._rows_of: dict[str, tuple[Row, ...]] = {}  # cache by op_type

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Contract:
        """Create a contract from the keys and values of a file."""
        allow_keys(record, _KEYS, "$")
        field(record, "ops", list, "$")
        return cls(**{"name": "target", **record})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Contract:
        """Read a .toml or .json file; every error names the file and the key."""
        try:
            return cls.from_dict({"name": Path(path).stem, **read_table(Path(path), _SIZE, "a contract")})
        except SerializationError as error:
            if str(path) not in str(error):
                error.file = str(path)
            raise

    def names(self, op_type: str) -> bool:
        """Whether any row covers that operator."""
        return bool(self.rows_of(op_type))

    def rows_of(self, op_type: str) -> tuple[Row, ...]:
        """Return the rows that cover an operator."""
        if op_type not in self._rows_of:
            self._rows_of[op_type] = tuple(row for row in self.rows if row.names(op_type))
        return self._rows_of[op_type]

    def why_not(self, node: OpNode) -> str:
        """Return why the device cannot run a node, or ""."""
        reasons = [row.why_not(node) for row in self.rows_of(node.op_type)]
        return NOT_LISTED if not reasons else "" if "" in reasons else "; or ".join(dict.fromkeys(reasons))

    def check_names(self) -> None:
        """Raise SerializationError at the first ATen operator or argument that torch lacks; imports torch."""
        from torch_ir.ops.schema import operator_names

        known = {*operator_names("aten"), *(name.rpartition(".")[0] for name in operator_names("aten"))}
        for index, row in enumerate(self.rows):
            for name in row.ops:
                if name.startswith("aten.") and not any(fnmatchcase(found, name) for found in known):
                    problem, hint = f"torch has no operator {name!r}", suggestion(name, known)
                    raise SerializationError(problem, f"ops[{index}].op", rule="R9", hint=hint)
            row.check_arguments(f"ops[{index}]")

    def __repr__(self) -> str:
        return f"Contract({self.name!r}, {sum(len(row.ops) for row in self.rows)} operators)"


def _read_row(item: Any, common: _Common, path: str) -> Row:
    record = {"op": item} if isinstance(item, str) else item
    allow_keys(record, _ROW_KEYS, path)
    op = record.get("op")
    names = [op] if isinstance(op, str) else texts(record, "op", path)
    if not names:
        raise SerializationError("'op' names no operator", path, rule="R4")
    for name in names:
        if not _OP_NAME.fullmatch(name):
            problem, near = f"{name!r:.60} is not an operator name such as 'aten.conv2d'", f"aten.{name}"
            raise SerializationError(problem, f"{path}.op", rule="R6", hint=suggestion(near, [near]))
    attrs = optional(record, "attrs", dict, path) or {}
    return Row(
        tuple(names),
        {**common.dtypes, **_read_dtypes(record.get("dtypes"), f"{path}.dtypes")},
        _read_limit(record["rank"], f"{path}.rank") if "rank" in record else common.rank,
        field(record, "static", bool, path) if "static" in record else common.static,
        {name: Limit.read(value, f"{path}.attrs.{name}") for name, value in attrs.items()},
        tuple(texts(record, "absent", path)),
        tuple(
            Condition.read(text, f"{path}.require[{index}]")
            for index, text in enumerate(texts(record, "require", path))
        ),
    )


def _read_limit(value: Any, path: str) -> Limit | None:
    return None if value is None else Limit.read(value, path)


def _read_dtypes(value: Any, path: str) -> Dtypes:
    """Read one list for all tensors, or one list per argument."""
    lists = value if isinstance(value, Mapping) else {} if value is None else {"": value}
    found: dict[str, tuple[str, ...]] = {}
    for name, dtypes in lists.items():
        place = f"{path}.{name}" if name else path
        if not isinstance(dtypes, (list, tuple)) or not dtypes:
            raise SerializationError(f"expected a list of dtypes, found {dtypes!r:.60}", place, rule="R4")
        found[name] = tuple(read_dtype(typed(dtype, str, place), place) for dtype in dtypes)
    return found
