"""The names that torch.export gives to weights, inputs, calls and modules, for every recorder."""
