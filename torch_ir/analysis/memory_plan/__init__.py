"""Static memory plans: buffers with lifetimes are placed at offsets in the banks of an accelerator."""
