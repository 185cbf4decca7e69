"""Operations over the places of an axis: scans, sorts, and writes through indices.

torch function, kinds of arguments, as in `test_aten.py`.
"""

import warnings

import torch


def _quiet(function, *args):
    """A call that torch warns of: it may change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args)


def _written(x, i, m):
    """Assignments through indices and masks."""
    y, z, w, v = x.clone(), x.clone(), i.clone(), x.clone()
    y[:, i[0, :2]] = 4.0
    z[m] = -1.0
    w[0, -1] = 9
    v[:, 1] = x[:, 0]
    flat = x.reshape(-1, 2, 3).clone()
    flat[i[0, :1] * 0, :, i[0, :2] % 3] = x[0, :1]
    places = (i[:1, :4] * 0, i[:1, :4])
    return y, z, w, v, flat, x.index_put(places, x[0, :4], accumulate=True)


PLACES = {
    "cumsum": (lambda x, i: (x.cumsum(0), i.cumsum(1)), "x i"),
    "scatter": (
        lambda x, i: (
            x.scatter(1, i, 2.5),
            torch.scatter(x, 1, i[:, :1], x),
            i.scatter(0, i[:1] * 0, i),
        ),
        "x i",
    ),
    "scatter_add": (
        lambda x, i: (
            x.scatter_add(1, i, x),
            i.scatter_add(1, i, i),
            _quiet(lambda: x.scatter(1, i, x, reduce="multiply")),
        ),
        "x i",
    ),
    "scatter_reduce": (
        lambda x, i: tuple(
            v.scatter_reduce(1, i, v, reduce, include_self=s)
            for v in (x, i)
            for reduce in ("sum", "prod", "mean", "amax", "amin")
            for s in (True, False)
        ),
        "x i",
    ),
    "index_add": (
        lambda x, i: (x.index_add(1, i[0], x, alpha=2), x[:4].index_copy(1, i[0, :1], x[:4, 2:3])),
        "x i",
    ),
    "index_reduce": (
        lambda x, i: tuple(
            _quiet(lambda: v.index_reduce(1, i[0], v, reduce, include_self=s))  # noqa: B023
            for v in (x, i)
            for reduce in ("prod", "mean", "amax")
            for s in (True, False)
        ),
        "x i",
    ),
    "index_fill": (
        lambda x, i: (x.index_fill(1, i[0] - 6, 3.0), i.index_fill(0, i[0, :1] * 0, 7)),
        "x i",
    ),
    "index_put": (lambda x, i, m: _written(x, i, m), "x i m"),
    "histc": (
        lambda x: (torch.histc(x, 7, -1, 2.5), torch.histc(x, 4), torch.histc(x * 0, 3)),
        "x",
    ),
    "sort": (
        lambda x, i: (
            *x.sort(0),
            *i.sort(stable=True),
            *torch.sort(i, stable=True, descending=True),
        ),
        "x i",
    ),
    "argsort": (lambda x, i: (x.argsort(1), i.argsort(stable=True, dim=0), i.msort()), "x i"),
    "topk": (lambda x, i: (*x.topk(2), *x.topk(1, 0, largest=False), i.topk(3).values), "x i"),
    "kthvalue": (lambda x: (*x.kthvalue(3), *x.kthvalue(1, 0, keepdim=True)), "x"),
    "median": (
        lambda x, i: (*x.median(1), x.median(), *x.median(0, True), i.median(1).values),
        "x i",
    ),
    "cumprod": (lambda x, i: (x.cumprod(1), i.cumprod(0), i.cumprod(1, dtype=torch.int32)), "x i"),
    "cummax": (lambda x, i: (*x.cummax(0), *i.cummax(-1)), "x i"),
    "cummin": (lambda i, m: (*i.cummin(1), *m.cummin(0)), "i m"),
    "logcumsumexp": (lambda x: (x.logcumsumexp(0), (50 * x).logcumsumexp(1)), "x"),
}
