"""What ties the layers together: compile, LLM, load, and the cache of compiled models."""
