"""Graph to program: groups become loop IR, that becomes C++ or Triton, and that binaries."""
