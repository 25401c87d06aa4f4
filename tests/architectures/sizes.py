"""The rows of the architectures: their differences from the common tiny sizes."""

from typing import Any

from torch_ir.llm.tiny_config import SIZES as SIZES

Row = tuple[str, str, dict[str, Any], str]  # name, model class, differences from SIZES, kind of inputs
