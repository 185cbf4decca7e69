"""What a device can do, as data: the only thing passes and codegen know of hardware."""

from dataclasses import dataclass

from .errors import DeviceError, OptionError
from .types import DType, bf16, bool_, f8e4m3, f16, f32, f64, i8, i16, i32, i64, u8

_INTEGERS = (bool_, u8, i8, i16, i32, i64)
_GPU_FLOATS = (f64, f32, f16, bf16)


@dataclass(frozen=True)
class Target:
    """A device model. Rates steer cost only; they are typical of the kind, not measured."""

    name: str  # "cpu", "sm_90", "gfx942", ...: also how users name it
    kind: str  # cpu | cuda | hip
    dtypes: tuple[DType, ...]
    num_cores: int  # threads worth running (CPU), streaming multiprocessors or compute units (GPU)
    bandwidth: float  # bytes/s of main memory
    flops: float  # multiply-adds of float32 (CPU) or bf16 (GPU) counted as 2, per second
    launch_us: float  # what one more kernel costs
    warp_size: int = 1
    shared_bytes: int = 0  # shared memory a kernel may use (GPU)
    march: str = ""  # what the C++ compiler is told (CPU)
    compute_dtype: DType = f32  # the activations' dtype that is fastest without losing range

    @property
    def is_gpu(self) -> bool:
        return self.kind != "cpu"

    def require_dtype(self, dtype: DType, what: str) -> None:
        """DeviceError when the device has no arithmetic for `dtype`."""
        if dtype not in self.dtypes:
            raise DeviceError(
                f"{self.name} has no {dtype}",
                where=what,
                facts=f"it computes in {', '.join(d.name for d in self.dtypes)}",
                fix="choose one of those dtypes, or another target",
            )


def cpu(march: str = "native", num_cores: int = 1) -> Target:
    """A CPU target; `march` as the C++ compiler spells it."""
    return Target(
        "cpu", "cpu", (f64, f32, bf16, f16, *_INTEGERS), num_cores, 20e9, 100e9, 3.0, march=march
    )


def _cuda(name: str, sms: int, bandwidth: float, flops: float, shared: int, fp8: bool) -> Target:
    dtypes = (*_GPU_FLOATS, *((f8e4m3,) if fp8 else ()), *_INTEGERS)
    return Target(name, "cuda", dtypes, sms, bandwidth, flops, 1.3, 32, shared, compute_dtype=bf16)


TARGETS = {
    t.name: t
    for t in (
        cpu(),
        _cuda("sm_80", 108, 1.9e12, 250e12, 163 * 1024, fp8=False),
        _cuda("sm_90", 132, 4.2e12, 750e12, 227 * 1024, fp8=True),
        _cuda("sm_100", 148, 7.5e12, 1600e12, 227 * 1024, fp8=True),
        Target(
            "gfx942", "hip", (*_GPU_FLOATS, *_INTEGERS), 304, 5.0e12, 900e12, 2.0, 64, 64 * 1024,
            compute_dtype=bf16,
        ),
    )
}  # fmt: skip


def get_target(name: str) -> Target:
    """The target called `name`; OptionError lists the names."""
    if not isinstance(name, str) or name not in TARGETS:
        raise OptionError(f"no target named {name!r}", facts=f"targets: {', '.join(TARGETS)}, auto")
    return TARGETS[name]
