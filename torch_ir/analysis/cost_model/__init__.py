"""What a graph costs: FLOPs, bytes and time, by node, module or operator."""
