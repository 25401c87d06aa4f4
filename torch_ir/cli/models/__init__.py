"""Models by name: the user's own, of transformers, of timm, or as torch.export saved them."""
