"""A graph as an ONNX model."""
