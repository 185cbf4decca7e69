"""What a device can do, as data: the only thing passes and codegen know of hardware."""

from dataclasses import dataclass

from .errors import DeviceError, OptionError
from .types import DTYPES, DType, bf16, f8e4m3, f8e5m2, f16, f32, f64, i8, i32

_INTEGERS = tuple(t for t in DTYPES.values() if not t.is_float and not t.is_packed)
_GPU_FLOATS = (f64, f32, f16, bf16)
_FLOAT8 = (f8e4m3, f8e5m2)
FULL_SUM = 24  # bits of a running sum as precise as one in float32


@dataclass(frozen=True)
class MatrixOp:
    """A product that a matrix unit makes of two operands of one dtype."""

    operand: DType
    total: DType  # what the products are added in
    rate: float  # operations a second, a multiply-add counted as 2
    sum_bits: int = FULL_SUM  # that a sum of products keeps inside the unit


@dataclass(frozen=True)
class Target:
    """A device model: features decide what code is made, rates which of it (codegen/cost.py)."""

    name: str  # "cpu", "sm_90", "gfx942", ...: also how users name it
    kind: str  # whose driver runs its programs, and Triton's name for it: cpu | cuda | hip
    architecture: int | str  # as Triton takes it (GPU)
    binary: str  # suffix of compiled code
    dtypes: tuple[DType, ...]  # that it computes in
    # rates
    bandwidth: float  # bytes/s of main memory, read and written
    rate: float  # operations/s of float32 outside matrix units, a multiply-add counted as 2
    launch_us: float  # what one more kernel costs
    # sizes
    num_cores: int  # threads worth running (CPU), streaming multiprocessors or compute units (GPU)
    warp_size: int = 1  # threads that run in step
    max_threads: int = 1  # of a program
    registers: int = 0  # of 32 bits, a core
    shared_bytes: int = 0  # shared memory a program may use
    # features
    matrix: tuple[MatrixOp, ...] = ()
    has_async_copies: bool = False  # from main into shared memory, past the registers
    has_tile_copies: bool = False  # one instruction copies a tile of a matrix, or its part inside
    has_dependent_launch: bool = False  # a kernel may start before the one in front has ended
    march: str = ""  # what the C++ compiler is told (CPU)
    compute_dtype: DType = f32  # the activations' dtype that is fastest without losing range

    @property
    def is_gpu(self) -> bool:
        return self.warp_size > 1

    def require_dtype(self, dtype: DType, what: str) -> None:
        """DeviceError when the device has no arithmetic for `dtype`."""
        if dtype not in self.dtypes:
            raise DeviceError(
                f"{self.name} has no {dtype}",
                where=what,
                facts=f"it computes in {', '.join(d.name for d in self.dtypes)}",
                fix="choose one of those dtypes, or another target",
            )

    def matrix_op(self, x: DType, w: DType) -> MatrixOp | None:
        """The fastest product of the matrix unit that is as exact as one in plain arithmetic.

        Its operands hold every value of x and w, and its sums are no coarser than float32's.
        """
        fitting = [
            op
            for op in self.matrix
            if op.operand.kind == x.kind == w.kind and op.sum_bits >= FULL_SUM
            if op.operand.holds(x) and op.operand.holds(w)
        ]
        # of equally fast ones the operands' own dtype, which needs no conversion
        return max(fitting, key=lambda op: (op.rate, op.operand in (x, w)), default=None)

    def rate_of(self, *operands: DType) -> float:
        """Operations a second: of sums of products of two operands, or, without any, others."""
        op = self.matrix_op(*operands) if operands else None
        # 64-bit arithmetic runs at half the rate of 32-bit on every device listed here
        return op.rate if op else self.rate / (2 if 64 in (d.bits for d in operands) else 1)

    def seconds(self, num_bytes: float, operations: float, *operands: DType) -> float:
        """The least that a kernel takes once it runs: the slower of moving and of computing.

        Williams, Waterman and Patterson, "Roofline", 2009; `operands` as of `rate_of`.
        """
        return max(num_bytes / self.bandwidth, operations / self.rate_of(*operands))


def cpu(march: str = "native", num_cores: int = 1) -> Target:
    """A CPU target; `march` as the C++ compiler spells it. Rates are typical of a few cores."""
    dtypes = (f64, f32, bf16, f16, *_INTEGERS)
    return Target("cpu", "cpu", "", "so", dtypes, 20e9, 100e9, 3.0, num_cores, march=march)


# Where nothing was measured, rates are a share of the published dense peaks: that which an H200
# reaches, in a bf16 product of 8192^3 (751 of 989 TFLOP/s) and in a copy (4.26 of 4.8 TB/s).
_COMPUTED, _MOVED = 0.76, 0.89


def _matrix(
    halves: float, bytes_: float, *float8: MatrixOp, singles: float = 0
) -> tuple[MatrixOp, ...]:
    """Products of 16-bit floats at one rate, of signed bytes at another, of float32 at a third.

    One of float32 is three of TF32 (docs/numerics.md): a sixth of the rate of halves at most.
    """
    ops = [MatrixOp(bf16, f32, halves), MatrixOp(f16, f32, halves), MatrixOp(i8, i32, bytes_)]
    if singles:
        ops.append(MatrixOp(f32, f32, singles))
    return (*ops, *float8)


def _cuda(
    name: str, cores: int, shared_kib: int, *, bandwidth: float, rate: float,
    matrix: tuple[MatrixOp, ...], dtypes: tuple[DType, ...] = (), **features,
) -> Target:  # fmt: skip
    return Target(
        name, "cuda", int(name.removeprefix("sm_")), "cubin", (*_GPU_FLOATS, *dtypes, *_INTEGERS),
        bandwidth, rate, 1.3, cores, 32, 1024, 65536, shared_kib * 1024, matrix,
        has_async_copies=True, compute_dtype=bf16, **features,
    )  # fmt: skip


TARGETS = {
    t.name: t
    for t in (
        cpu(),
        # A100 80 GB: 2.04 TB/s, 19.5 TFLOP/s in float32, 312 in halves, 624 in bytes
        _cuda(
            "sm_80", 108, 163, bandwidth=2.04e12 * _MOVED, rate=19.5e12 * _COMPUTED,
            matrix=_matrix(312e12 * _COMPUTED, 624e12 * _COMPUTED, singles=52e12 * _COMPUTED),
        ),
        # A40: 0.696 TB/s, 37.4 TFLOP/s in float32, 149.7 in halves, 299.3 in bytes. Of the cards of
        # its generation and the next (sm_89), which runs its code, a program has 99 KiB.
        _cuda(
            "sm_86", 84, 99, bandwidth=0.696e12 * _MOVED, rate=37.4e12 * _COMPUTED,
            matrix=_matrix(149.7e12 * _COMPUTED, 299.3e12 * _COMPUTED),
        ),
        # H200, measured, but for float32 (67 published). Sums of its float8 products keep 14 bits:
        # DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.3.2.
        _cuda(
            "sm_90", 132, 227, bandwidth=4.26e12, rate=67e12 * _COMPUTED,
            matrix=_matrix(
                751e12, 823e12, *(MatrixOp(t, f32, 1284e12, 14) for t in _FLOAT8), singles=84e12
            ),
            dtypes=(f8e4m3,), has_tile_copies=True, has_dependent_launch=True,
        ),
        # B200: 8 TB/s, 75 TFLOP/s in float32, 2250 in halves, 4500 in bytes and float8
        _cuda(
            "sm_100", 148, 227, bandwidth=8.0e12 * _MOVED, rate=75e12 * _COMPUTED,
            matrix=_matrix(
                2250e12 * _COMPUTED, 4500e12 * _COMPUTED,
                *(MatrixOp(t, f32, 4500e12 * _COMPUTED) for t in _FLOAT8),
                singles=375e12 * _COMPUTED,
            ),
            dtypes=(f8e4m3,), has_tile_copies=True, has_dependent_launch=True,
        ),
        # MI300X: 5.3 TB/s, 163 TFLOP/s in float32, 1307 in halves, 2615 in bytes; its float8 has
        # other values than ours (no negative zero)
        Target(
            "gfx942", "hip", "gfx942", "hsaco", (*_GPU_FLOATS, *_INTEGERS),
            5.3e12 * _MOVED, 163e12 * _COMPUTED, 2.0, 304, 64, 1024, 131072, 64 * 1024,
            _matrix(1307e12 * _COMPUTED, 2615e12 * _COMPUTED), compute_dtype=bf16,
        ),
    )
}  # fmt: skip

REFERENCE = TARGETS["sm_90"]  # on which default schedules were searched for, on an H200


def get_target(name: str) -> Target:
    """The target called `name`; OptionError lists the names."""
    if not isinstance(name, str) or name not in TARGETS:
        raise OptionError(f"no target named {name!r}", facts=f"targets: {', '.join(TARGETS)}, auto")
    return TARGETS[name]


def target_of(architecture: str) -> Target | None:
    """The best target whose code an NVIDIA GPU ("sm_89") runs; None where there is none.

    Code for sm_86 also runs on sm_89: the same major version, and a minor that is not lower.
    """
    major, minor = divmod(int(architecture.removeprefix("sm_")), 10)
    numbers = (t.architecture for t in TARGETS.values() if isinstance(t.architecture, int))
    best = max((n for n in numbers if n // 10 == major and n % 10 <= minor), default=None)
    return None if best is None else TARGETS[f"sm_{best}"]
