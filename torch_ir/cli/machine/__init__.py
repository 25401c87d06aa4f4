"""The commands about this machine: its installation, and its speed."""
