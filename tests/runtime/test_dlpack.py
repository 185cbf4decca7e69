"""DLPack in both directions against torch and NumPy, for every dtype."""

import gc
import subprocess
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
import torch

from tilewright.ir import types
from tilewright.ir.errors import ShapeError
from tilewright.runtime.array import Array
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.dlpack import CPU, View, capsule_of, is_contiguous, view_of

TORCH = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u64": torch.uint64,
    "u32": torch.uint32,
    "u16": torch.uint16,
    "u8": torch.uint8,
    "bool": torch.bool,
}


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 5), (1,)])
def test_torch_in(name, shape):
    tensor = torch.arange(100)[: int(np.prod(shape))].reshape(shape).to(TORCH[name])
    view = view_of(tensor)
    assert view.dtype is types.DTYPES[name]
    assert (view.shape, view.strides, view.device) == (shape, None, CPU)
    if tensor.numel():
        assert view.address == tensor.data_ptr(), "seen in place, not copied"
    assert view.numpy().astype(np.float64).tolist() == tensor.double().tolist()


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("shape", [(3, 4), (), (1,)])
def test_torch_out(name, shape):
    dtype = types.DTYPES[name]
    host = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype.numpy)
    array = Array(shape, dtype, host)
    tensor = torch.from_dlpack(array)
    assert tensor.dtype is TORCH[name]
    assert tensor.data_ptr() == array.address == host.ctypes.data
    assert tensor.double().tolist() == host.astype(np.float64).tolist()
    assert tuple(tensor.shape) == shape


def test_float8_is_carried():
    host = np.array([1.0, -2.0], ml_dtypes.float8_e4m3fn)
    view = view_of(Array((2,), types.f8e4m3, host))
    assert view.dtype is types.f8e4m3
    assert view.numpy().astype(np.float32).tolist() == [1.0, -2.0]


def test_strides_and_offsets():
    tensor = torch.arange(24.0).reshape(4, 6)[1:, ::2].T
    view = view_of(tensor)
    assert view.strides == (2, 6)
    np.testing.assert_array_equal(view.numpy(), tensor.numpy())
    array = np.arange(24.0).reshape(4, 6)[::-1, 1:]
    np.testing.assert_array_equal(view_of(array).numpy(), array)
    assert is_contiguous((3, 1, 4), (4, 99, 1)), "the stride of a single element does not matter"
    assert is_contiguous((3, 0), (7, 5))
    assert not is_contiguous((3, 4), (1, 3))


def test_numpy_goes_both_ways():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    ours = Array((2, 3), types.i32, array)
    np.testing.assert_array_equal(np.from_dlpack(ours), array)
    assert np.asarray(ours) is array
    assert np.asarray(ours, np.float64).dtype == np.float64
    assert np.array(ours, copy=True) is not array
    assert view_of(np.from_dlpack(ours)).address == array.ctypes.data
    read_only = array.copy()
    read_only.flags.writeable = False
    assert view_of(read_only).address == read_only.ctypes.data


def test_memory_outlives_its_array():
    """A consumer's tensor keeps the memory, and nothing keeps it once the tensor is gone."""
    device = CpuDevice()
    memory = device.allocate(64, "a test", zero=True)
    gone = weakref.ref(memory)
    array = Array.over(memory, (4,), types.f32, device)
    array.numpy()[:] = [1, 2, 3, 4]
    tensor = torch.from_dlpack(array)
    del memory, array
    gc.collect()
    assert gone() is not None
    assert tensor.tolist() == [1, 2, 3, 4]
    del tensor
    gc.collect()
    assert gone() is None


def test_a_view_keeps_the_producer():
    tensor = torch.arange(4.0)
    view = view_of(tensor)
    del tensor
    gc.collect()
    assert view.numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("is_taken", [True, False])
def test_capsules_of_any_memory_are_released(is_taken):
    """The path of memory that is not NumPy's, tried with memory that is."""

    class Owner:
        pass

    owner, host = Owner(), np.arange(6, dtype=np.float32)
    gone = weakref.ref(owner)
    view = View(host.ctypes.data, (2, 3), (1, 2), types.f32, CPU, owner)
    capsule = capsule_of(view)
    del owner, view
    gc.collect()
    assert gone() is not None
    if is_taken:
        tensor = torch.utils.dlpack.from_dlpack(capsule)
        assert tensor.tolist() == [[0, 2, 4], [1, 3, 5]]
        assert gone() is not None
        del tensor
    del capsule
    gc.collect()
    assert gone() is None


EXIT = """
import sys
import numpy as np, torch
from tilewright.ir import types
from tilewright.runtime.dlpack import CPU, View, capsule_of
host = np.arange(6, dtype=np.float32)
class Cycle: pass
cycle = Cycle()
cycle.itself = cycle
cycle.tensor = torch.utils.dlpack.from_dlpack(
    capsule_of(View(host.ctypes.data, (6,), None, types.f32, CPU, host))
)
sys.modules["kept_to_the_end"] = cycle
"""


def test_a_tensor_may_outlive_the_interpreter():
    result = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (2, 1, 3), (1, 1)])
@pytest.mark.parametrize("name", ["f32", "bf16", "i64", "bool"])
def test_capsules_of_all_shapes(shape, name):
    dtype = types.DTYPES[name]
    host = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype.numpy)
    view = View(host.ctypes.data, shape, None, dtype, CPU, host)
    tensor = torch.utils.dlpack.from_dlpack(capsule_of(view))
    assert tensor.dtype is TORCH[name]
    assert tuple(tensor.shape) == shape
    assert tensor.is_contiguous()
    assert tensor.double().tolist() == host.astype(np.float64).tolist()


def test_what_is_no_array_is_an_error():
    with pytest.raises(ShapeError, match="a str is not an array"):
        view_of("text")
    with pytest.raises(ShapeError, match="it is NumPy's complex64"):
        view_of(np.zeros(3, np.complex64))
    with pytest.raises(ShapeError, match="it is NumPy's >f4"):
        view_of(np.zeros(3, ">f4"))
    with pytest.raises(ShapeError, match="DLPack code 5 of 64 bits"):
        view_of(torch.zeros(3, dtype=torch.complex64))

    class Liar:
        def __dlpack_device__(self):
            return CPU

        def __dlpack__(self, **_):
            return 7

    with pytest.raises(ShapeError, match="returned no DLPack capsule"):
        view_of(Liar())
    array = Array((1,), types.f32, np.zeros(1, np.float32))
    with pytest.raises(BufferError, match="not on"):
        array.__dlpack__(dl_device=(2, 0))
