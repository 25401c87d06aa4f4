"""One stage of a pipeline in its own process: receive inputs, compute, send outputs.

mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("stage",))
rank = StageRank(load_ir("pipeline.json"), mesh)
rank.load_weights("model.safetensors")
outputs = rank.run([(x1,), (x2,)])          # per batch: the model outputs that this stage computes
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.pipeline.in_turn import made_by
from torch_ir.pipeline.stages import check_pipeline, sends_of, stage_of
from torch_ir.pipeline.wire import Wire
from torch_ir.run.executor import IRExecutor, flat_inputs
from torch_ir.run.stored import Weight, loaded
from torch_ir.run.weight_files import has_pieces, load_weights, open_weights, weights_read

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AXIS = "stage"


class StageRank:
    """The stage of this process, by its rank along the mesh axis `stage`; the graph's own axes are separate."""

    def __init__(self, ir: IR, mesh: DeviceMesh, *, device: str | torch.device | None = None) -> None:
        require_graph(ir, "StageRank")
        self.number = _number_in(mesh, check_pipeline(ir))
        self.ir, self.stage = ir, stage_of(ir, self.number)
        self.executor = IRExecutor(self.stage, device=device, mesh=mesh if ir.mesh else None)
        self._wire = Wire(mesh.get_group(AXIS), self.executor.device)
        sends = sends_of(ir)
        self._receives = [send for send in sends if send.target == self.number]
        self._sends = [send for send in sends if send.source == self.number]
        received = {send.value.name for send in self._receives}
        self._given = [tensor for tensor in self.stage.graph_inputs if tensor.name not in received]

    def load_weights(self, path: str | os.PathLike[str]) -> None:
        """Bind the weights of a checkpoint; of .safetensors files, only those of the stage are read."""
        self.load_weights_from_state_dict(open_weights(path) if has_pieces(path) else load_weights(path))

    def load_weights_from_state_dict(self, weights: Mapping[str, Weight]) -> None:
        """Bind the stage's part of the weights of the whole model."""
        own = self.executor.rank.weights(self.stage, weights_read(self.stage, weights))
        self.executor.load_weights_from_state_dict({key: loaded(value) for key, value in own.items()})

    def run(self, batches: Sequence[Sequence[Any]]) -> list[dict[int, Any]]:
        """Run batches of the model's inputs; return the model outputs computed here, by their index.

        All stages must receive the same number of batches. Inputs that the stage does not read may be anything.
        """
        count = len(self.ir.graph_outputs)
        return [{place: value for place, value in made.items() if place < count} for made in self.left(batches)]

    def left(self, batches: Sequence[Sequence[Any]]) -> list[dict[int, Any]]:
        """Like `run`, with the new values of changed tensors after all outputs."""
        found = [self._run(flat_inputs(self.ir, tuple(batch), {})) for batch in batches]
        self._wire.finish()
        return found

    def _run(self, values: Sequence[Any]) -> dict[int, Any]:
        known = dict(zip((tensor.name for tensor in self.ir.graph_inputs), values, strict=True))
        known = {tensor.name: self._own(tensor, known[tensor.name]) for tensor in self._given}
        for send in self._receives:  # in sending order
            known[send.value.name] = self._wire.receive(send.value, send.source)
        outcome = self.executor.run([known[tensor.name] for tensor in self.stage.graph_inputs])
        made = made_by(self.stage, outcome)
        self._wire.finish()  # of the previous batch, which the others had time to receive
        for send in self._sends:
            self._wire.send(made[send.value.name], send.target)
        left = enumerate(self.ir.returns.inputs)
        return {place: made[tensor.name] for place, tensor in left if (tensor.producer is self.ir.nodes[self.number])}

    def _own(self, tensor: TensorMeta, value: Any) -> Any:
        """Return the shard of an input that a rank of a sharded stage needs."""
        return self.executor.rank.piece(self.stage, tensor, value) if isinstance(value, torch.Tensor) else value


def _number_in(mesh: DeviceMesh, ir: IR) -> int:
    names = mesh.mesh_dim_names or ()
    size = mesh.shape[names.index(AXIS)] if AXIS in names else None
    if size != len(ir.nodes):
        there = f"has {size}" if size is not None else f"has no axis {AXIS!r}"
        raise ExecutionError(f"the pipeline has {len(ir.nodes)} stages, but the mesh {there}")
    return mesh.get_local_rank(AXIS)
