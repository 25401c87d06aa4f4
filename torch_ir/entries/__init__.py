"""Several modules as entry points of one file: two-tower models, diffusion pipelines."""

from torch_ir.entries.entry_feeds import Feed, feeds_of
from torch_ir.entries.execute import bind_entries, run_entries
from torch_ir.entries.extract_modules import Entry, extract_entries
from torch_ir.entries.pipelines import extract_pipeline, pipeline_weights, run_pipeline

__all__ = [
    "Entry",
    "Feed",
    "bind_entries",
    "extract_entries",
    "extract_pipeline",
    "feeds_of",
    "pipeline_weights",
    "run_entries",
    "run_pipeline",
]
