"""Tensor parallelism: shard a graph over ranks, load its weights, run and verify it."""

from torch_ir.run.lockstep import run_in_lockstep
from torch_ir.sharding.local_ranks import LocalRanks, run_sharded, whole_outputs
from torch_ir.sharding.shard_graph import shard
from torch_ir.sharding.sharded_verification import verify_sharded
from torch_ir.sharding.sharding_plan import transformers_plan

__all__ = [
    "LocalRanks", "run_in_lockstep", "run_sharded", "shard", "transformers_plan", "verify_sharded", "whole_outputs",
]  # fmt: skip
