"""A graph as a module of torch: its calls in an fx graph, its weights under their keys."""
