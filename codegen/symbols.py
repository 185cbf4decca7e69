"""Which graph symbols a kernel's parts mention: its integer arguments."""

from .elements import kernel_symbols, walk

__all__ = ["kernel_symbols", "walk"]
