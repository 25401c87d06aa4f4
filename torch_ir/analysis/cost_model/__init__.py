"""The cost model: FLOPs, bytes and time, by node, module or operator."""
