"""The way by torch.export: its program, traced without weights."""
