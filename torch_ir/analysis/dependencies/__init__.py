"""What depends on what: order, slices, functions, partitions."""
