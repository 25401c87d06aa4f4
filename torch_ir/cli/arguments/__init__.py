"""What verbs take: models, graphs, inputs, sizes."""
