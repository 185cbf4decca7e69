"""Compile a PyTorch module and call it with inputs of any batch size.

python examples/compile_module.py
"""

import torch

import tilewright


class Block(torch.nn.Module):
    """A gated feed-forward block with a residual."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.norm = torch.nn.RMSNorm(width, eps=1e-6)
        self.gate = torch.nn.Linear(width, inner, bias=False)
        self.up = torch.nn.Linear(width, inner, bias=False)
        self.down = torch.nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    block = Block(256, 1024).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    compiled = tilewright.compile(
        block, (torch.randn(2, 256),), dynamic_shapes={"x": {0: batch}}, target="cpu"
    )
    for size in (1, 3, 64):
        x = torch.randn(size, 256)
        difference = (compiled(x) - block(x)).abs().max().item()
        print(f"batch {size:2}: largest difference from eager {difference:.1e}")
        assert difference < 1e-5
    print(f"{len(compiled.variants)} program, {len(compiled.program.steps)} kernels:")
    for step in compiled.program.steps:
        print(f"  {step.choices[0].kernel}")
    try:
        compiled(torch.randn(65, 256))
    except tilewright.DimError as error:
        print(f"batch 65: {error}")


if __name__ == "__main__":
    main()
