"""Operations over images: convolution, pooling, resizing, sampling, normalization by channel.

torch function, kinds of arguments, as in `test_aten.py`; "w" and digits is a weight of that shape.
"""

import torch
import torch.nn.functional as F


def _resized(x, **given):
    modes = ("nearest", "nearest-exact", "bilinear", "bicubic")
    plain = [F.interpolate(x, mode=mode, **given) for mode in modes]
    return [*plain, *(F.interpolate(x, mode=m, align_corners=True, **given) for m in modes[2:])]


def _sampled(x, grid, modes=("bilinear", "nearest", "bicubic")):
    """Every two of mode, padding and corners together."""
    grid = 1.3 * torch.tanh(grid)  # some of it outside
    grid = grid.expand(x.shape[0], *grid.shape[1:])
    return [
        F.grid_sample(x, grid, mode, padding, align_corners=bool((i + j) % 2))
        for i, mode in enumerate(modes)
        for j, padding in enumerate(("zeros", "border", "reflection"))
    ]


VISION = {
    "conv1d": (
        lambda x, w, v: (
            F.conv1d(x, w),
            F.conv1d(x, w, v, stride=2, padding=1),
            F.conv1d(x, w, padding="same", dilation=2),
            F.conv1d(x[0], w),
        ),
        "x3 w642 w6",
    ),
    "conv2d": (
        lambda x, w, v: (
            F.conv2d(x, w, v),
            F.conv2d(x, w, stride=(2, 1), padding=(1, 2)),
            F.conv2d(x, w, dilation=2, padding="same"),
            F.conv2d(x, w, v, padding="valid", stride=3),
            F.conv2d(x, w[:, :, :1, :1], stride=2),
        ),
        "im w6433 w6",
    ),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=1, stride=(1, 2, 1)), "vol w42323"),
    "conv_groups": (
        lambda x, w, v: (
            F.conv2d(x, w[:, :2], v, groups=2, padding=1),
            F.conv2d(x, w[:4, :1], groups=4, padding=1, stride=2),
            F.conv2d(x, v.reshape(8, 1, 1, 1), groups=4),
        ),
        "im w8433 w8",
    ),
    "conv_transpose": (
        lambda x, w, v, u: (
            F.conv_transpose2d(x, w, v, stride=2, padding=1, output_padding=1),
            F.conv_transpose2d(x, w[:, :, :1], dilation=2, padding=(0, 3)),
            F.conv_transpose2d(x, w[:, :3], groups=2, stride=(1, 3)),
            F.conv_transpose1d(x[:, :, 0], u, stride=2),
        ),
        "im w4632 w6 w432",
    ),
    "conv_transpose3d": (lambda x, w: F.conv_transpose3d(x, w, stride=2), "vol w23222"),
    "max_pool": (
        lambda x, v: (
            F.max_pool2d(x, 2),
            F.max_pool2d(x, 3, 2, 1),
            F.max_pool2d(x, (3, 2), 2, (1, 0), 2),
            F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.max_pool2d(x, 2, return_indices=True),
            F.max_pool2d(x, (2, 3), 2, 1, return_indices=True),
            F.max_pool1d(x[:, 0], 3),
            F.max_pool3d(v, 2, return_indices=True),
        ),
        "im vol",
    ),
    "avg_pool": (
        lambda x, v: (
            F.avg_pool2d(x, 2),
            F.avg_pool2d(x, 3, 2, 1),
            F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.avg_pool2d(x, (3, 2), 2, (1, 0), ceil_mode=True, count_include_pad=False),
            F.avg_pool2d(x, 2, divisor_override=3),
            F.avg_pool1d(x[:, 0], 3),
            F.avg_pool3d(v, 2, 1),
        ),
        "im vol",
    ),
    "lp_pool": (lambda x: (F.lp_pool2d(x, 2, 2), F.lp_pool2d(x, 3.0, (2, 3), 1)), "im"),
    "adaptive_pool": (
        lambda x, v: (
            F.adaptive_avg_pool2d(x, 1),
            F.adaptive_avg_pool2d(x, (1, 4)),
            F.adaptive_avg_pool2d(x, (3, 6)),
            F.adaptive_max_pool2d(x, (3, 8)),
            F.adaptive_max_pool2d(x, (7, 2), return_indices=True),
            F.adaptive_avg_pool1d(x[:, 0], 3),
            F.adaptive_max_pool1d(x[:, 0], 3),
            F.adaptive_avg_pool3d(v, 2),
        ),
        "im vol",
    ),
    "columns": (
        lambda x: (
            F.unfold(x, (2, 3), padding=1, stride=2),
            F.unfold(x[0], 2, dilation=2),
            F.fold(F.unfold(x, 2, stride=1), (7, 8), 2),
        ),
        "im",
    ),
    "resized_images": (
        lambda x: (
            _resized(x, size=(9, 4)),
            _resized(x, scale_factor=2),
            _resized(x, scale_factor=(0.6, 1.7)),
            _resized(x, scale_factor=1.3, recompute_scale_factor=True),
        ),
        "im",
    ),
    "resized_smoothly": (
        lambda x: [
            F.interpolate(x, size=size, mode=mode, antialias=True, align_corners=corners)
            for mode in ("bilinear", "bicubic")
            for size in ((3, 3), (9, 2))
            for corners in (False, True)
        ],
        "im",
    ),
    "resized_lines": (
        lambda x, v: (
            F.interpolate(x, size=11, mode="linear"),
            F.interpolate(x, scale_factor=0.5, mode="nearest"),
            F.interpolate(v, scale_factor=2, mode="trilinear"),
            F.interpolate(v, size=(3, 4, 1), mode="nearest"),
        ),
        "x3 vol",
    ),
    "grid_sample": (_sampled, "im w1342"),
    "grid_sample_volumes": (
        lambda x, grid: _sampled(x, grid, ("bilinear", "nearest")),
        "vol w12343",
    ),
    "affine_grid": (
        lambda x: F.affine_grid(x[:1, 0, :2, :3], [1, 1, 3, 4], align_corners=False),
        "im",
    ),
    "normalized_channels": (
        lambda x, v: (
            F.batch_norm(x, v[0], v[1].exp(), v[2], v[3]),
            F.batch_norm(x, v[0], v[1].exp(), eps=0.1),
            F.group_norm(x, 2, v[0], v[1]),
            F.instance_norm(x, weight=v[0], bias=v[1]),
            F.local_response_norm(x, 3),
            F.local_response_norm(x, 2, 0.1, 0.5, 2.0),
        ),
        "im w44",
    ),
    "pixels": (
        lambda x: (
            F.pixel_shuffle(x, 2),
            F.pixel_unshuffle(x[..., :6, :], 2),
            F.channel_shuffle(x, 2),
        ),
        "im",
    ),
    "pad_images": (
        lambda x: [F.pad(x, (1, 2, 3, 0), mode=m) for m in ("reflect", "replicate", "circular")],
        "im",
    ),
}
