"""Input files for simulators: Chakra execution traces, layer tables of SCALE-Sim, workloads of ZigZag and Timeloop."""

from torch_ir.simulators.chakra import to_chakra
from torch_ir.simulators.chakra_ranks import write_ranks
from torch_ir.simulators.loop_nests import to_timeloop, to_zigzag
from torch_ir.simulators.scale_sim import to_scale_sim

__all__ = ["to_chakra", "to_scale_sim", "to_timeloop", "to_zigzag", "write_ranks"]
