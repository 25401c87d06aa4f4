"""The rows of the architectures: what differs from the sizes that tiny models share."""

from typing import Any

from torch_ir.llm.tiny_config import SIZES as SIZES

Row = tuple[str, str, dict[str, Any], str]  # name, model class, what differs from SIZES, kind of inputs
