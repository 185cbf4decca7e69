"""Compiled and eager on the same arguments, to the bit unless a tolerance is given."""

import torch
from torch import nn

import tilewright

NARROW = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16)


def module(function):
    """A module whose forward is the function."""
    return type("Case", (nn.Module,), {"forward": lambda self, *args: function(*args)})().eval()


def check(function, *args, **bounds):
    """Compiled and eager give the same results, signs of zero included; gives the program."""
    compiled = tilewright.compile(module(function), args, target="cpu")
    same(function, compiled, *args, **bounds)
    return compiled


def same(function, compiled, *args, rtol=0.0, atol=0.0):
    """One call of both, on copies of the arguments, which must end alike too."""
    ours, theirs = [a.clone() for a in args], [a.clone() for a in args]
    got, want = compiled(*ours), module(function)(*theirs)
    for a, b in zip([*got, *ours], [*want, *theirs], strict=True):
        if a.dtype in NARROW:
            a, b = a.float(), b.float()
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
        if a.is_floating_point():
            number = ~b.isnan()
            assert torch.equal(a.signbit()[number], b.signbit()[number])
