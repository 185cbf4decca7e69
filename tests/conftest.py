"""What every test shares: options, the seeded generator, and which devices are here."""

import ctypes
import importlib.util
import os
import sys
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# Verify the graph after each pass, unless the run asks for more or for less.
os.environ.setdefault("TILEWRIGHT_CHECK", "1")
# No test may reach for a model hub: it would hang where there is no network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Small programs as well run on several threads: without the switch they would use one.
os.environ.setdefault("TILEWRIGHT_THREADS", str(min(4, len(os.sched_getaffinity(0)))))
# Threads of torch spin until the last is done: with more of them than cores, workers wait for one
# another, and the smallest operation takes a hundred times as long.
if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    share = max(1, len(os.sched_getaffinity(0)) // int(workers))
    os.environ.setdefault("OMP_NUM_THREADS", str(share))

# The same examples in each run, and no clock: on a busy machine nothing is slow for its own sake.
settings.register_profile(
    "tilewright", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tilewright")


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what was produced over the expected text of each golden test",
    )
    parser.addoption(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where programs run; with cuda, those tests alone that run programs on a device",
    )


def pytest_ignore_collect(collection_path, config):
    """Files that need hypothesis, where it is missing: a GPU machine brings its own packages."""
    if collection_path.suffix == ".py" and importlib.util.find_spec("hypothesis") is None:
        text = collection_path.read_text()
        return True if "hypothesis" in text and collection_path.name != "conftest.py" else None
    return None


def has_nvidia_gpu() -> bool:
    """Whether a CUDA driver is installed and sees a device; imports nothing heavy."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return (
        cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    )


def pytest_collection_modifyitems(config, items):
    if config.getoption("--device") == "cuda":
        if not has_nvidia_gpu():
            raise pytest.UsageError("--device cuda: no NVIDIA GPU on this machine")
        _keep(config, items, lambda i: "device" in i.fixturenames or i.get_closest_marker("gpu"))
    if any(item.get_closest_marker("gpu") for item in items) and not has_nvidia_gpu():
        skip = pytest.mark.skip(reason="no NVIDIA GPU on this machine")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)
    if "perf" not in config.option.markexpr:
        _keep(config, items, lambda item: not item.get_closest_marker("perf"))


def _keep(config, items, wanted):
    """Deselect all other items."""
    dropped = [item for item in items if not wanted(item)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if wanted(item)]


@pytest.fixture(scope="session", autouse=True)
def cache_of_this_run(tmp_path_factory):
    """One cache for all workers of a run, empty at its beginning: nothing is found from before."""
    base = tmp_path_factory.getbasetemp()
    is_worker = "PYTEST_XDIST_WORKER" in os.environ  # then the base is one of several, side by side
    os.environ["TILEWRIGHT_CACHE"] = str((base.parent if is_worker else base) / "tilewright-cache")


@pytest.fixture(scope="session")
def device(request) -> str:
    """Where the test's programs run, as a target: the CPU, or the GPU with `--device cuda`."""
    if request.config.getoption("--device") == "cpu":
        return "cpu"
    from tilewright.api.machine import gpu_target

    return gpu_target()


@pytest.fixture(scope="session")
def slack(device) -> float:
    """By what tolerances grow on GPUs, whose exp, log, sin and cos are approximations."""
    return 1.0 if device == "cpu" else 4.0


@pytest.fixture
def update_golden(request) -> bool:
    """True when the run is to rewrite expected texts."""
    return request.config.getoption("--update-golden")


@pytest.fixture
def rng(request) -> np.random.Generator:
    """A generator seeded by the test's own name: the same numbers whatever else runs before it."""
    return np.random.default_rng(_seed(request))


@pytest.fixture(autouse=True)
def _seeded_torch(request):
    """The same of torch's own generator, where torch is loaded."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(_seed(request))


def _seed(request) -> int:
    return zlib.crc32(request.node.nodeid.encode())
