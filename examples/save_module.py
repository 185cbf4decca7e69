"""Compile a module, save it, and call it in a process that has no PyTorch.

python examples/save_module.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.export import Dim

import tilewright

# What runs where the model is used: it sees no torch, even where one is installed.
USE = """
import sys
sys.modules["torch"] = None  # importing it would fail
import numpy as np
import tilewright

with tilewright.load(sys.argv[1]) as classify:
    for batch in (1, 5):
        result = classify(np.ones((batch, 16), np.float32))
        print(f"batch {batch}: best {np.asarray(result['best'])}, {result['scores']}")
"""


class Classifier(nn.Module):
    """Two layers; gives the scores of each class and the best one."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))

    def forward(self, x):
        scores = self.layers(x).softmax(-1)
        return {"scores": scores, "best": scores.argmax(-1)}


def main() -> None:
    torch.manual_seed(0)
    module = Classifier().eval()
    # one program for any batch from 1 to 64
    shapes = {"x": {0: Dim("batch", min=1, max=64)}}
    compiled = tilewright.compile(module, (torch.ones(2, 16),), dynamic_shapes=shapes)
    with tempfile.TemporaryDirectory() as folder:
        path = compiled.save(Path(folder) / "classifier.zip")
        print(f"saved {path.stat().st_size:,} bytes")
        subprocess.run([sys.executable, "-c", USE, str(path)], check=True)


if __name__ == "__main__":
    main()
