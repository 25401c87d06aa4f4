"""The quick road: a model recorded on tensors without memory, with every operator's shape rule asked once."""
