"""Runs emitted kernels under Triton's interpreter; started by harness.py, once a run.

A request is a line of JSON: the source's path, the kernel's name, the grid and the arguments, each
an integer or the path of a .npy file. Arrays are written back in place. The answer is one line.
"""

import importlib.util
import json
import sys
import traceback

import numpy as np
import torch
from triton.runtime import interpreter

torch.set_num_threads(1)
# a source that is written anew within a second would be taken for the one before
sys.dont_write_bytecode = True
TORCH = {"bfloat16": torch.bfloat16}  # float8 stays bytes, as kernels take it


def all_ones(_, type):
    """What Triton before 3.8 makes of -1, which NumPy refuses for unsigned numbers."""
    zero = np.zeros(1, interpreter._get_np_dtype(type))
    return interpreter.TensorHandle(np.invert(zero), type.scalar)


interpreter.InterpreterBuilder.get_all_ones_value = all_ones


def load(path, dtype):
    array = torch.from_numpy(np.load(path))
    return array.view(TORCH[dtype]) if dtype in TORCH else array


def serve(request):
    spec = importlib.util.spec_from_file_location("emitted", request["source"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arguments, arrays = [], []
    for item in request["arguments"]:
        if isinstance(item, int):
            arguments.append(item)
        else:
            tensor = load(*item)
            arguments.append(tensor)
            arrays.append((item[0], tensor, item[1]))
    getattr(module, request["name"])[tuple(request["grid"])](*arguments)
    for path, tensor, dtype in arrays:
        np.save(path, (tensor.view(torch.int16) if dtype in TORCH else tensor).numpy())


for line in sys.stdin:
    try:
        serve(json.loads(line))
        answer = {"ok": True}
    except Exception:  # noqa: BLE001 (whatever it is, the test that asked shows it)
        answer = {"ok": False, "error": traceback.format_exc()}
    print(json.dumps(answer), flush=True)
