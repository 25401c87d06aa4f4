"""Other encodings of graphs and lowered graphs that can be read back: protobuf. No torch."""

from torch_ir.formats.protobuf import (
    from_protobuf,
    is_protobuf,
    load_protobuf,
    lowered_from_protobuf,
    lowered_to_protobuf,
    save_protobuf,
    to_protobuf,
)

__all__ = [
    "from_protobuf", "is_protobuf", "load_protobuf", "lowered_from_protobuf", "lowered_to_protobuf", "save_protobuf",
    "to_protobuf",
]  # fmt: skip
