"""A model as it ran: one run in ordinary Python, operator call by operator call."""

from torch_ir.capture.record.program import record

__all__ = ["record"]
