"""The NVIDIA device: what it says without one, how it launches (on a stand-in), and for real."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.ir.errors import DeviceError, OutOfMemory
from tilewright.ir.program import Kernel, Program
from tilewright.runtime import cuda
from tilewright.runtime.device import Launch

from .fake_cuda import FakeCore, FakeDriver


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(DeviceError, match=r"not installed(.|\n)*pip install \"tilewright\[gpu\]\""):
        cuda.CudaDevice()
    assert cuda.count_devices() == 0


@pytest.fixture
def fake(monkeypatch):
    driver = FakeDriver()
    core = FakeCore(driver)
    monkeypatch.setattr(cuda, "load_cuda", lambda: (core, driver))
    device = cuda.CudaDevice()
    driver.calls.clear()
    return SimpleNamespace(core=core, driver=driver, device=device)


def program(target="sm_90", **options) -> Program:
    facts = {"pdl": True, "hidden": 2, "dims": ["i32", "i64"], **options}
    kernel = Kernel("k", "triton", "", "", "k.cubin", "pointwise", 4, 100_000, 0, facts)
    return Program("p", target, {}, {}, (), (), {"k": kernel}, (), 0, {"k.cubin": b"\x7fELF"})


def launch(made: Program, buffers=(1, 0)) -> Launch:
    return Launch(0, made.kernels["k"], buffers, (5, 6), (7, 2))


def test_a_launch_passes_pointers_dims_and_what_triton_hides(fake):
    made = program()
    plan = fake.device.load(made).plan([launch(made)])
    plan.run(np.array([160, 320], np.uint64))
    ((config, name, args),) = fake.driver.launched
    assert name == "k"
    assert config.hStream == fake.device.stream.handle
    assert [int.from_bytes(a, "little") for a in args] == [320, 160, 5, 6, 0, 0]
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (7, 2, 1)
    assert (config.blockDimX, config.sharedMemBytes) == (128, 100_000)
    assert config.numAttrs == len(config.attrs) == 1
    assert config.attrs[0].id == 6
    assert config.attrs[0].value.programmaticStreamSerializationAllowed == 1
    assert fake.driver.attributes == [(8, 100_000)]


def test_each_launch_has_scratch_memory_of_its_own(fake):
    """A kernel may start to write there before the one in front of it has ended."""
    made = program()
    kernels = {"k": replace(made.kernels["k"], scratch_bytes=100)}
    made = replace(made, kernels=kernels)
    plan = fake.device.load(made).plan([launch(made), launch(made)])
    plan.run(np.array([160, 320], np.uint64))
    first, second = (int.from_bytes(args[-2], "little") for *_, args in fake.driver.launched)
    assert first
    assert second >= first + 100 * 7 * 2


def test_sizes_are_as_wide_as_the_kernel_reads_them(fake):
    made = program(dims=["i32", "i64"])
    one = Launch(0, made.kernels["k"], (0, 1), (-3, -(2**40)), (1,))
    fake.device.load(made).plan([one]).run(np.array([16, 32], np.uint64))
    _, _, args = fake.driver.launched[0]
    assert int.from_bytes(args[2][:4], "little", signed=True) == -3
    assert int.from_bytes(args[3], "little", signed=True) == -(2**40)


def test_addresses_that_come_again_are_captured(fake):
    """The second time; those of a plan of few launches never."""
    made = program()
    plan = fake.device.load(made).plan([launch(made)] * 5)
    here, there = np.array([16, 32], np.uint64), np.array([48, 32], np.uint64)
    launched = fake.driver.launched
    for addresses, new in ((here, 5), (there, 5), (here, 6), (here, 1), (there, 6), (here, 1)):
        launched.clear()
        plan.run(addresses)
        assert len(launched) == new
        assert (launched[-1] == "graph") == (new != 5)
    launched.clear()
    for number in range(20):  # none again
        plan.run(np.array([16, 64 + 16 * number], np.uint64))
    plan.run(here)
    assert len(launched) == 21 * 5, "forgotten meanwhile"
    few = fake.device.load(made).plan([launch(made)])
    for _ in range(3):
        few.run(here)
    assert "graph" not in launched


def test_a_captured_plan_launches_once_and_replays(fake):
    made = program()
    replay = fake.device.load(made).plan([launch(made)]).capture(np.array([16, 32], np.uint64))
    assert len(fake.driver.launched) == 1
    replay()
    replay()
    assert fake.driver.launched[1:] == ["graph", "graph"]


def test_copies_beside_the_host_are_waited_for_one_by_one(fake):
    device = fake.device
    memory, staging = device.allocate(64, "a test"), device.host_memory(64)
    assert not staging.any()
    sent = device.send(memory, staging[:48])
    fetched = device.fetch(memory, staging[48:].view(np.int32))
    calls = fake.driver.calls
    assert calls == ["send 48", "event", "fetch 16", "event"]
    fetched()
    assert calls[4:] == ["reach 4"], "and not what comes after it"
    del sent, fetched
    assert sorted(calls[5:]) == ["end 2", "end 4"]
    calls.clear()
    del staging
    assert calls == ["wait", "free host memory"]


def test_streams_wait_for_each_other(fake):
    """Each time through an event that is recorded anew: what waited for it before is not moved."""
    told, driver, own = [], fake.driver, fake.device.dlpack_stream
    driver.cuEventRecord = lambda event, stream: told.append(("record", event, stream)) or (0,)
    driver.cuStreamWaitEvent = lambda stream, event, _: told.append(("wait", event, stream)) or (0,)
    fake.device.wait_for(5)
    fake.device.hand_over(6)
    mark = told[0][1]
    assert told == [
        ("record", mark, 5), ("wait", mark, own), ("record", mark, own), ("wait", mark, 6)
    ]  # fmt: skip


def test_binaries_are_unloaded_after_all_that_uses_them(fake):
    made = program()
    module = fake.device.load(made)
    plan = module.plan([launch(made)])
    replay = plan.capture(np.array([16, 32], np.uint64))
    del module, plan
    replay()
    assert fake.driver.calls == ["load"]
    del replay
    assert fake.driver.calls == ["load", "destroy", "wait", "unload"]


def test_graphs_of_a_plan_go_before_its_binaries(fake):
    made = program()
    plan = fake.device.load(made).plan([launch(made)] * 5)
    for _ in range(2):
        plan.run(np.array([16, 32], np.uint64))
    del plan
    assert fake.driver.calls == ["load", "destroy", "wait", "unload"]


def test_a_forked_process_is_told_so_and_gives_nothing_back(fake):
    made = program()
    module, memory = fake.device.load(made), fake.device.allocate(100, "a")
    plan = module.plan([launch(made)])
    addresses = np.array([16, 32], np.uint64)
    replay = plan.capture(addresses)
    for one in (fake.device, replay):
        one.after_fork()
    for use in (
        replay,
        lambda: plan.run(addresses),
        lambda: fake.device.upload(memory, np.zeros(8)),
        lambda: fake.device.allocate(8, "b"),
        lambda: fake.device.load(made),
    ):
        with pytest.raises(DeviceError, match=r"a forked process(.|\n)*survive(.|\n)*spawn"):
            use()
    module = plan = replay = memory = use = None  # all goes
    assert fake.driver.freed == []
    assert not {"unload", "destroy"} & set(fake.driver.calls)


def test_an_address_kernels_cannot_use_is_refused(fake):
    made = program()
    plan = fake.device.load(made).plan([launch(made)])
    plan.run(np.array([16, 32, 7], np.uint64))  # the third is no argument of the kernel
    with pytest.raises(DeviceError, match=r"not aligned(.|\n)*0x22(.|\n)*x\.clone"):
        plan.run(np.array([16, 34, 7], np.uint64))


def test_a_program_for_another_gpu_is_refused(fake):
    with pytest.raises(DeviceError, match=r"compiled for sm_80, cuda:0 is sm_90"):
        fake.device.load(program("sm_80"))


def test_a_gpu_takes_programs_of_the_target_whose_code_it_runs(fake):
    fake.core.capability = (8, 9)
    device = cuda.CudaDevice()
    device.load(program("sm_86"))
    with pytest.raises(DeviceError, match=r"compiled for sm_80, cuda:0 is sm_86"):
        device.load(program("sm_80"))


def test_running_out_says_what_was_needed(fake):
    with pytest.raises(OutOfMemory, match=r"no memory for weights(.|\n)*needed: 2,000,000,000"):
        fake.device.allocate(2_000_000_000, "weights")


def test_memory_goes_back_when_nothing_refers_to_it(fake):
    memory = fake.device.allocate(100, "a")
    address = memory.address
    del memory
    assert fake.driver.freed == [address]


def test_brief_memory_is_kept_for_the_next_and_given_up_for_others(fake):
    """It is used again only after what the default stream, torch's too, was told meanwhile."""
    device, driver = fake.device, fake.driver
    freed, waits = [], []
    driver.cuMemFree = lambda address: freed.append(address) or (0,)
    driver.cuStreamWaitEvent = lambda stream, event, flags: waits.append(event) or (0,)
    first = device.allocate(1000, "a", brief=True)
    address = first.address
    del first
    other = device.allocate(3000, "b", brief=True)
    assert not waits
    again = device.allocate(1024, "c", brief=True)
    assert again.address == address != other.address
    assert len(waits) == 1
    assert not freed
    del again
    device.free_bytes()
    assert freed == [address]
    many = [device.allocate(1 << 28, "d", brief=True) for _ in range(5)]
    while many:
        del many[0]  # a sixteenth of 16 GiB is kept, and no more
    assert len(freed) == 1 + 5
    last = device.allocate(5000, "e", brief=True)
    del last
    driver.free = 100
    with pytest.raises(OutOfMemory):
        device.allocate(1000, "f")
    assert len(freed) == 1 + 5 + 1, "what was spare is given back before there is too little"


def test_pinned_memory_is_waited_for(fake):
    memory = fake.device.allocate(64, "a")
    fake.device.upload(memory, np.zeros(8))
    assert fake.driver.synchronized == 0
    fake.driver.cuPointerGetAttribute = lambda attribute, address: (0,)
    fake.device.upload(memory, np.zeros(8))
    assert fake.driver.synchronized == 1


def test_a_driver_error_carries_its_words(fake):
    fake.driver.cuStreamSynchronize = lambda stream: (999,)
    with pytest.raises(DeviceError, match=r"CUDA_ERROR_UNKNOWN(.|\n)*unknown error"):
        fake.device.synchronize()


def test_no_such_gpu(fake):
    with pytest.raises(DeviceError, match=r"no NVIDIA GPU number 3(.|\n)*1 found"):
        cuda.CudaDevice(3)


# ---- a real one -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpu():
    return cuda.CudaDevice()


@pytest.mark.gpu
def test_memory_round_trip(gpu):
    for count in (1, 1000, 20_000_000):  # pooled and plain
        memory = gpu.allocate(8 * count, "numbers", zero=True)
        back = np.ones(count)
        gpu.download(memory, back)
        assert not back.any()
        gpu.upload(memory, np.arange(count, dtype=np.float64))
        other = gpu.allocate(8 * count, "a copy")
        gpu.copy(other.address, memory.address, 8 * count)
        gpu.download(other, back)
        np.testing.assert_array_equal(back, np.arange(count))


@pytest.mark.gpu
def test_too_much_memory(gpu):
    with pytest.raises(OutOfMemory, match="needed: 1,000,000,000,000,000"):
        gpu.allocate(10**15, "everything")


@pytest.mark.gpu
def test_a_compiled_program_runs_captured_and_not(gpu):
    pytest.importorskip("triton", reason="Triton is in the extra `gpu`")
    from tilewright import passes
    from tilewright.codegen.build import build
    from tilewright.ir.builder import Builder
    from tilewright.ir.target import get_target
    from tilewright.passes.pipelines import dense
    from tilewright.runtime.executable import Executable

    b = Builder("small")
    t = b.dim("t", 1, 64)
    x = b.rms_norm(b.input("x", (t, 64)), b.weight("g", (64,)))
    y = b.add(b.matmul(x, b.weight("w", (96, 64)), transpose_w=True), b.input("r", (t, 96)))
    made = build(passes.run(b.graph([y]), dense()).graph, get_target(gpu.target))
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal(s, np.float32) for n, s in (("g", 64), ("w", (96, 64)))}
    exe = Executable(made, weights, gpu)
    for count in (1, 7, 40):
        x, r = (rng.standard_normal((count, n), np.float32) for n in (64, 96))
        norm = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6)
        want = (norm * weights["g"]) @ weights["w"].T.astype(np.float64) + r
        np.testing.assert_allclose(exe(x, r)[0].numpy(), want, rtol=1e-4, atol=1e-4)
        placed = [gpu.allocate(a.nbytes, "an input") for a in (x, r)]
        for memory, array in zip(placed, (x, r)):
            gpu.upload(memory, array)
        run, (out,) = _fixed(exe, [x.shape, r.shape], [m.address for m in placed])
        for _ in range(2):
            gpu.zero(out._memory)
            run()
            np.testing.assert_allclose(out.numpy(), want, rtol=1e-4, atol=1e-4)


def _fixed(exe, shapes, addresses):
    outputs = [
        exe.new_array(exe.program.buffers[name], shape)
        for name, (shape, _) in zip(exe.program.outputs, exe.output_types(shapes))
    ]
    return exe.fix(shapes, addresses, outputs), outputs


@pytest.mark.gpu
def test_an_index_out_of_range_is_an_error_and_not_a_crash(gpu):
    pytest.importorskip("triton", reason="Triton is in the extra `gpu`")
    from tilewright import passes
    from tilewright.codegen.build import build
    from tilewright.ir.builder import Builder
    from tilewright.ir.errors import IndexOutOfRange
    from tilewright.ir.target import get_target
    from tilewright.ir.types import i64
    from tilewright.passes.pipelines import dense
    from tilewright.runtime.executable import Executable
    from tilewright.runtime.fixed_run import FixedRun

    b = Builder("lookup")
    t = b.dim("t", 1, 64)
    rows = b.gather(b.input("x", (9, 32)), b.input("i", (t,), i64))
    made = build(passes.run(b.graph([rows]), dense()).graph, get_target(gpu.target))
    exe = Executable(made, {}, gpu)
    x = np.arange(288, dtype=np.float32).reshape(9, 32)
    prepared = FixedRun(exe, [(9, 32), (3,)])
    for index in (9, -1, 2**40):
        with pytest.raises(IndexOutOfRange, match=f"index {index} .* size 9"):
            exe(x, np.array([0, index, 8]))
        prepared.run({"x": x, "i": np.array([index, 1, 2])})  # captured: at the read
        with pytest.raises(IndexOutOfRange, match=f"index {index} .* size 9"):
            prepared.output(0)
        good = np.array([8, 0, 3])
        np.testing.assert_array_equal(exe(x, good)[0].numpy(), x[good])
        prepared.run({"x": x, "i": good})
        np.testing.assert_array_equal(prepared.output(0), x[good])


@pytest.mark.gpu
def test_calls_in_a_row_are_ordered_with_torch(gpu):
    """Nothing is waited for on the host: results are used, dropped and written over at once."""
    torch = pytest.importorskip("torch")
    import tilewright

    module = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()).eval().cuda()
    x = torch.randn(4096, 512, device="cuda")
    with torch.no_grad():
        compiled = tilewright.compile(module, (x,), target=gpu.target)
        expected = [module(x * n).sum(1) for n in range(20)]
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                found = [compiled(x * n).sum(1) for n in range(20)]
            torch.cuda.synchronize()
            for one, right in zip(found, expected):
                torch.testing.assert_close(one, right, rtol=1e-3, atol=1e-3)
