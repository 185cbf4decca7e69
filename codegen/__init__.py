"""Graph to program: groups become loop IR, loop IR becomes C++ or Triton, sources become binaries."""
