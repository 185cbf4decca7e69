"""The engine: many sequences in one step over a paged program, and `LLM` on top of it."""
