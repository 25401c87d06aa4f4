"""Pipeline parallelism: split a graph into stages on separate devices, run and verify it."""

from torch_ir.pipeline.local_stages import run_pipeline
from torch_ir.pipeline.pipeline_verification import verify_pipeline
from torch_ir.pipeline.stage_process import StageRank
from torch_ir.pipeline.stage_report import PipelineReport, StageRow, pipeline_report
from torch_ir.pipeline.stage_split import split
from torch_ir.pipeline.stages import Send, is_pipeline, sends_of, stage_of
from torch_ir.pipeline.training_memory import TrainingReport, TrainingStageRow, training_report
from torch_ir.pipeline.training_run import TrainedStep, train_pipeline

__all__ = [
    "PipelineReport", "Send", "StageRank", "StageRow", "TrainedStep", "TrainingReport", "TrainingStageRow",
    "is_pipeline", "pipeline_report", "run_pipeline", "sends_of", "split", "stage_of", "train_pipeline",
    "training_report", "verify_pipeline",
]  # fmt: skip
