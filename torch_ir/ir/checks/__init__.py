"""What must hold in a graph: one file per part, with the rules, limits and JSON paths of errors."""
