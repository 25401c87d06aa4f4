"""Message classes of protobuf, created at run time from a descriptor set: generated code fits one release only."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from torch_ir.errors import MissingExtraError

_FOLDER = Path(__file__).parent


@lru_cache
def message_class(file: str, name: str) -> Any:
    """Return the class of a message of `<file>.binpb`, in a pool of its own: other code may use another such file."""
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message_factory import GetMessageClass
    except ImportError:  # missing, or older than 4.22
        raise MissingExtraError("a protobuf file", "protobuf", "protobuf") from None
    pool = DescriptorPool()
    for found in FileDescriptorSet.FromString((_FOLDER / f"{file}.binpb").read_bytes()).file:
        pool.Add(found)
    return GetMessageClass(pool.FindMessageTypeByName(name))
