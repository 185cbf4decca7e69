"""Runs programs: executables, devices, artifacts, the KV cache, the engine and its `LLM`."""
