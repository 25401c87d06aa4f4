"""The JSON format of a graph: values, records, nodes, and the text of the file."""
