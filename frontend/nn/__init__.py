"""Layers as ops: what importers of every language build. Nothing of torch or ONNX is in here."""
