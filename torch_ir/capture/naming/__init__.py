"""Names of weights, inputs, calls and modules as torch.export gives them, whatever records the model."""
