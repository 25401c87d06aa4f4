"""Dependencies: order, slices, function references, partitions."""
