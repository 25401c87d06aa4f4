"""The training step: forward, loss, backward and optimiser as graphs over one table of weights."""

from torch_ir.training.recompute_layers import RecomputeReport, recompute
from torch_ir.training.training_capture import extract_training, optimizer_state

__all__ = ["RecomputeReport", "extract_training", "optimizer_state", "recompute"]
