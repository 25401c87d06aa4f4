"""Random graphs that need not run but use every feature of the format, and their properties."""
