"""ONNX models in: files and protobufs to graphs."""
