"""Export rows as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from torch_ir.ir.files.atomic_write import plain_target, write_bytes
from torch_ir.sweep.row import Row

PARQUET = "rows.parquet"
_TYPES = {"str": "string", "int": "int64", "float": "float64"}


def write_parquet(rows: Sequence[Row], folder: Path) -> bool:
    """Write the rows as Parquet; return False if pyarrow is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return False
    # from the annotations, so that a column has its type even if all its values are missing
    types = [(field.name, getattr(pyarrow, _TYPES[str(field.type).split(" ")[0]])()) for field in fields(Row)]
    table = pyarrow.Table.from_pylist([row.to_record() for row in rows], schema=pyarrow.schema(types))
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    write_bytes(plain_target(folder / PARQUET), sink.getvalue().to_pybytes())
    return True
