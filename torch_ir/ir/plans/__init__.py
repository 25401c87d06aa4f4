"""Plans that are kept in a graph's file beside the graph."""
