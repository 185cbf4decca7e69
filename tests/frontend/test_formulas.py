"""Elementary and special functions, polynomials, Fourier transforms: as ops, against torch."""

import mpmath
import numpy as np
import pytest
import torch

from tilewright.frontend.declined import Declined
from tilewright.frontend.nn.elementary import elementary
from tilewright.frontend.nn.fourier import hermitian, transform
from tilewright.frontend.nn.polynomials import chebyshev
from tilewright.frontend.nn.powers import integer_power
from tilewright.frontend.nn.special import polygamma, special, zeta
from tilewright.ir.builder import Builder
from tilewright.ir.evaluate import evaluate
from tilewright.ir.types import DTYPES, f64

EDGES = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan")]
WIDE = [*EDGES, *np.geomspace(1e-12, 1e12, 60), *-np.geomspace(1e-12, 1e12, 60)]
UNIT = [*EDGES, *np.linspace(-1, 1, 41)]
SMALL = [*EDGES, *np.linspace(-30, 30, 121), *np.geomspace(1e-9, 1, 20)]
POSITIVE = [0.0, float("inf"), -2.0, *np.geomspace(1e-8, 400, 80)]


def run(build, *arrays, dtype=f64):
    b = Builder()
    values = [b.input(f"x{i}", a.shape, dtype) for i, a in enumerate(arrays)]
    results = build(b, *values)
    graph = b.graph(results if isinstance(results, tuple) else (results,))
    found, _ = evaluate(graph, {f"x{i}": a for i, a in enumerate(arrays)})
    return found if isinstance(results, tuple) else found[0]


@pytest.mark.parametrize(
    ("name", "points"),
    [
        *((name, WIDE) for name in ("atan", "asinh", "acosh")),
        *((name, UNIT) for name in ("asin", "acos", "atanh")),
        *((name, SMALL) for name in ("sinh", "cosh")),
    ],
)
def test_elementary_functions(name, points):
    x = np.array(points)
    wanted = getattr(torch, name)(torch.tensor(x)).numpy()
    got = run(lambda b, x: elementary(b, name, x), x)
    np.testing.assert_allclose(got, wanted, rtol=4e-15, atol=1e-300)
    same = ~np.isnan(wanted)
    assert (np.signbit(got) == np.signbit(wanted))[same].all()


@pytest.mark.parametrize("name", ["atan2", "hypot"])
def test_elementary_functions_of_two(name):
    points = np.array([*EDGES, 2.5, -2.5, 1e-200, 1e200])
    y, x = (a.ravel() for a in np.meshgrid(points, points))
    wanted = getattr(torch, name)(torch.tensor(y), torch.tensor(x)).numpy()
    got = run(lambda b, y, x: elementary(b, name, y, x), y, x)
    np.testing.assert_allclose(got, wanted, rtol=4e-15, atol=0)
    same = ~np.isnan(wanted)
    assert (np.signbit(got) == np.signbit(wanted))[same].all()


SPECIAL = {
    "erfc": (torch.special.erfc, SMALL),
    "erfcx": (torch.special.erfcx, [x for x in SMALL if x != float("-inf") and x > -25]),
    "erfinv": (torch.special.erfinv, UNIT),
    "lgamma": (torch.lgamma, SMALL),
    "digamma": (torch.digamma, SMALL),
    "i0": (torch.special.i0, SMALL),
    "i0e": (torch.special.i0e, WIDE),
    "i1": (torch.special.i1, SMALL),
    "i1e": (torch.special.i1e, WIDE),
    "k0": (torch.special.modified_bessel_k0, POSITIVE),
    "k1": (torch.special.modified_bessel_k1, POSITIVE),
    "k0e": (torch.special.scaled_modified_bessel_k0, POSITIVE[:1] + POSITIVE[3:]),
    "k1e": (torch.special.scaled_modified_bessel_k1, POSITIVE[:1] + POSITIVE[3:]),
    "spherical_j0": (torch.special.spherical_bessel_j0, SMALL),
    "ndtri": (torch.special.ndtri, [-0.1, 1.1, 0.0, 1.0, *np.geomspace(1e-300, 0.6, 40), 1 - 1e-9]),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions(name):
    function, points = SPECIAL[name]
    x = np.array(points)
    wanted = function(torch.tensor(x)).numpy()
    got = run(lambda b, x: special(b, name, x), x)
    np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["j0", "j1", "y0", "y1"])
def test_bessel_functions(name):
    exact = {"j": mpmath.besselj, "y": mpmath.bessely}[name[0]]
    x = np.array([0.01, *np.linspace(0.7, 40, 37), 1e4])
    got = run(lambda b, x: special(b, name, x), x)
    wanted = [float(exact(int(name[1]), mpmath.mpf(float(v)))) for v in x]
    np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-10)
    edges = np.array([*EDGES, -3.0])
    got = run(lambda b, x: special(b, name, x), edges)
    wanted = getattr(torch.special, f"bessel_{name}")(torch.tensor(edges)).numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_zeta_and_polygamma():
    s = np.array([0.5, 1.0, 1.25, 2.0, 3.0, 7.0, 60.0])[:, None]
    q = np.array([-20.5, -7.0, -0.25, 0.0, 1e-6, 0.4, 3.0, 50.0, 1e17, np.inf, -np.inf, np.nan])
    wanted = torch.special.zeta(torch.tensor(s), torch.tensor(q)).numpy()
    np.testing.assert_allclose(run(zeta, s, q), wanted, rtol=1e-12)
    for order in range(5):
        points = q[q != np.floor(q)] if order == 1 else q
        wanted = torch.polygamma(order, torch.tensor(points)).numpy()
        got = run(lambda b, x, order=order: polygamma(b, order, x), points)
        np.testing.assert_allclose(got, wanted, rtol=1e-8)


@pytest.mark.parametrize("dtype", ["i64", "i8", "u8"])
def test_powers_of_integers(dtype):
    dtype = DTYPES[dtype]
    numbers = np.array([0, 1, 2, 3, 5, 63, 100, *([-1, -2, -3, -7] if dtype.kind == "int" else ())])
    x, y = (a.astype(dtype.numpy) for a in np.meshgrid(numbers, numbers, indexing="ij"))
    wanted = torch.pow(torch.tensor(x), torch.tensor(y)).numpy()
    np.testing.assert_array_equal(run(integer_power, x, y, dtype=dtype), wanted)
    row = run(integer_power, x[:, :1], y[:1], dtype=dtype)
    np.testing.assert_array_equal(row, wanted)


@pytest.mark.parametrize("kind", "tuvw")
@pytest.mark.parametrize("shifted", [False, True])
def test_chebyshev_polynomials(kind, shifted):
    points, degrees = np.meshgrid(np.linspace(-1.5, 1.5, 13), np.arange(-2.0, 6.5, 0.5))
    prefix = "shifted_" if shifted else ""
    function = getattr(torch.special, f"{prefix}chebyshev_polynomial_{kind}")
    wanted = function(torch.tensor(points), torch.tensor(degrees)).numpy()
    got = run(lambda b, x, n: chebyshev(b, kind, x, n, shifted=shifted), points, degrees)
    np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("size", [1, 2, 5, 64, 67, 96, 360])
@pytest.mark.parametrize("inverse", [False, True])
def test_fourier_transforms(size, inverse):
    rng = np.random.default_rng(size)
    x, y = rng.standard_normal((2, 3, size))
    both = np.fft.ifft(x + 1j * y) * size if inverse else np.fft.fft(x + 1j * y)
    real = np.fft.ifft(x) * size if inverse else np.fft.fft(x)
    for given, wanted in (((x, y), both), ((x,), real)):
        got = run(lambda b, *v: transform(b, (*v, None)[:2], inverse=inverse), *given)
        np.testing.assert_allclose(got[0] + 1j * got[1], wanted, rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_halves_of_real_transforms(size):
    half = np.fft.rfft(np.arange(float(size)) ** 2)
    got = run(lambda b, x, y: hermitian(b, (x, y), size), half.real.copy(), half.imag.copy())
    np.testing.assert_allclose(
        got[0] + 1j * got[1], np.fft.fft(np.arange(float(size)) ** 2), rtol=1e-12, atol=1e-10
    )


def test_sizes_without_factors_are_declined():
    b = Builder()
    with pytest.raises(Declined, match="size 4099"):
        transform(b, (b.input("x", (4099,), f64), None))
