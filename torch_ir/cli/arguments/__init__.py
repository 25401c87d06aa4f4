"""Arguments of the verbs: models, graphs, inputs, sizes."""
