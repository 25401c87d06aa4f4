"""The extension guide's door to what a registered conversion receives."""

from torch_ir.capture.program.node_info import NodeInfo

__all__ = ["NodeInfo"]
