"""The GPUs that kernels are built for."""

from tilewright.ir.target import TARGETS

# all but sm_86: to Triton it is sm_80 with less shared memory, which test_builds looks at
GPUS = [t for t in TARGETS.values() if t.is_gpu and t.name != "sm_86"]
