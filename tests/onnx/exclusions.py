"""ONNX's own tests that are left out, each group by a pattern of names and with the reason."""

EXCLUDED: dict[str, str] = {}
