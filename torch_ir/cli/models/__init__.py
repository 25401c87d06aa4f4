"""Models by name: the user's own code, transformers, timm, or exported programs."""
