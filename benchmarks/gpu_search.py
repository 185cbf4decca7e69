"""Check the kernels of a Llama-8B layer against torch, and search their schedules, on one GPU.

    python benchmarks/gpu_search.py OUT [check gemv chain attention thin mid tiled copied ...]

Each figure is the median of replays of a captured graph; weights rotate so that no cache helps.
"""

import itertools
import sys
import time
from pathlib import Path

import gpu_lab as lab
import torch
from gpu_lab import Built, Sequence, Shape, compile_all, median_us, relative_error

from tilewright.codegen.templates import choices
from tilewright.codegen.templates.attention_schedules import MANY, AttentionSchedule
from tilewright.codegen.templates.contract_schedules import DotSchedule, GemvSchedule
from tilewright.ir.dim import evaluate
from tilewright.runtime.cuda import CudaDevice

BF16 = torch.bfloat16
S = Shape()
RESULTS: dict = {}


def randn(*shape, scale=1.0, dtype=BF16):
    return (torch.randn(*shape, device="cuda", dtype=torch.float32) * scale).to(dtype)


def tensors_of(name: str, t: int, kernels, *, context=None, shared=None) -> tuple[dict, dict]:
    """(tensors, sizes) for one kernel at t tokens."""
    k = kernels[name]
    sizes = {"t": t}
    if name in ("rope", "attention"):
        context = context or t
        seqs = 1 if name == "rope" else (shared or t)
        width = -(-context // S.W)
        sizes |= {"pages": seqs * width, "seqs": seqs, "width": width}
    tensors = {}
    for param, called in zip(k.kernel.params, k.names):
        shape = [evaluate(d, sizes) for d in param.type.shape]
        dtype = lab.TORCH[param.type.dtype.name]
        if param.type.dtype.is_float:
            scale = 0.02 if called.startswith("w") else 1.0
            tensors[called] = randn(*shape, scale=scale, dtype=dtype)
        else:
            tensors[called] = torch.zeros(shape, device="cuda", dtype=dtype)
    if name == "rope":
        tensors["slots"] = torch.randperm(t, device="cuda").int()
    if name == "attention":
        seqs, width = sizes["seqs"], sizes["width"]
        tensors["table"] = torch.randperm(seqs * width, device="cuda").int().view(seqs, width)
        tensors["starts"] = (torch.arange(seqs + 1, device="cuda") * (t // seqs)).int()
        tensors["lens"] = torch.full((seqs,), context, device="cuda").int()
    return tensors, sizes


# ---- what torch says -----------------------------------------------------------------------


def norm(x, g):
    x = x.double()
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * g.double()


def reference(name: str, p: dict, sizes: dict) -> dict[str, torch.Tensor]:
    """Every output of a kernel, in float64."""
    if name in ("qkv", "head"):
        return {"out": norm(p["h"], p["g"]) @ p["w"].double().T}
    if name in ("o", "down"):
        return {"out": p["x"].double() @ p["w"].double().T + p["h"].double()}
    if name == "gated":
        x = norm(p["h"], p["g"])
        return {"out": torch.nn.functional.silu(x @ p["wg"].double().T) * (x @ p["wu"].double().T)}
    if name == "sample":
        p["temperature"].zero_()
        return {"out": p["logits"].argmax(-1)}
    if name == "argmax":
        return {"out": p["x"].argmax(-1)}
    t = sizes["t"]
    if name == "rope":
        cos, sin = p["cos"].double()[:, None], p["sin"].double()[:, None]
        heads = p["qkv"].double().view(t, S.H + 2 * S.G, S.D)

        def turned(x):
            a, b = x.chunk(2, -1)
            return x * cos + torch.cat([-b, a], -1) * sin

        k, v = p["k"].double(), p["v"].double()
        page, at = p["slots"].long() // S.W, p["slots"].long() % S.W
        k[page, :, at] = turned(heads[:, S.H : S.H + S.G])
        v[page, :, at] = heads[:, S.H + S.G :]
        return {"q": turned(heads[:, : S.H]), "k": k, "v": v}
    out = torch.empty(t, S.H, S.D, device="cuda", dtype=torch.float64)
    for i in range(sizes["seqs"]):
        a, b, n = int(p["starts"][i]), int(p["starts"][i + 1]), int(p["lens"][i])
        keys, values = (  # [pages, G, W, D] -> [G, n, D]
            p[x][p["table"][i].long()].double().transpose(0, 1).reshape(S.G, -1, S.D)[:, :n]
            for x in ("k", "v")
        )
        q = p["q"][a:b].double().transpose(0, 1).view(S.G, -1, b - a, S.D)
        scores = q @ keys[:, None].transpose(-1, -2) * S.D**-0.5
        seen = torch.arange(n, device="cuda") <= torch.arange(n - b + a, n, device="cuda")[:, None]
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        out[a:b] = (weights @ values[:, None]).view(S.H, b - a, S.D).transpose(0, 1)
    return {"out": out}


def check(device, kernels) -> None:
    """Every kernel under every default schedule."""
    jobs, wanted = [], []
    for name, k in kernels.items():
        _, buckets = choices(k.kernel, lab.TARGET)
        for number, (lo, hi, schedule) in enumerate(buckets):
            jobs.append((k, f"{name}_{number}", schedule, True))
            wanted.append((name, lo, hi, schedule))
    for (name, lo, hi, schedule), built in zip(wanted, compile_all(jobs)):
        if isinstance(built, str):
            continue
        t = max(lo, 1) if hi is None or name in ("rope", "argmax") else min(hi, 64)
        if name == "attention":
            t = 77 if lo >= MANY else min(t, 64)
        t = 40 if name == "rope" and lo > 1 else t
        shared = 1 if name == "attention" and lo >= MANY else None
        p, sizes = tensors_of(
            name, t, kernels, context=203 if name == "attention" else None, shared=shared
        )
        want = reference(name, p, sizes)
        for called in want:
            if called not in ("k", "v"):
                p[called].fill_(-77)
        sequence = Sequence(device)
        sequence.add(Built(device, kernels[name], schedule, built), sizes, p)
        sequence.run()
        errors = {called: relative_error(p[called].view(w.shape), w) for called, w in want.items()}
        good = all(e < 6e-3 for e in errors.values())
        print("ok " if good else "BAD", name, f"t={t}", schedule, errors, flush=True)
        RESULTS.setdefault("check", {})[f"{name} {schedule}"] = errors


# ---- searches ------------------------------------------------------------------------------


def search(device, kernels, name, t, schedules, *, pdl=True, copies=6, keep=6, **extra):
    """Time each schedule on rotating weights; the best first."""
    k = kernels[name]
    jobs = [(k, f"{name}_{i}", s, pdl) for i, s in enumerate(schedules)]
    builds = compile_all(jobs)
    sets = []
    for _ in range(copies):
        p, sizes = tensors_of(name, t, kernels, **extra)
        sets.append(p)
    found = []
    begin = time.time()
    spaces = None
    for schedule, built in zip(schedules, builds):
        if isinstance(built, str):
            continue
        try:
            ready = Built(device, k, schedule, built)
            spaces = ready.spaces(sizes)
            sequence = Sequence(device)
            for p in sets:
                sequence.add(ready, sizes, p, spaces)
            us = median_us(device, sequence.capture(), 7) / copies
            found.append((us, schedule))
        except Exception as error:  # noqa: BLE001 (a schedule that fails is a line of the report)
            print("  ", schedule, repr(error)[:200], flush=True)
    found.sort(key=lambda f: f[0])
    weights = sum(p.numel() * 2 for n, p in sets[0].items() if n.startswith("w"))
    pools = (p for n, p in sets[0].items() if n in ("k", "v"))
    moved = weights or sum(p.numel() * p.element_size() for p in pools)
    print(f"{name} t={t} {extra} ({time.time() - begin:.1f} s)", flush=True)
    for us, schedule in found[:keep]:
        print(f"   {us:8.2f} us {moved / us / 1e6:6.3f} TB/s  {schedule}", flush=True)
    RESULTS.setdefault("search", {})[f"{name} t={t} {extra}"] = [
        (us, str(s)) for us, s in found[:20]
    ]
    return found[0][1] if found else None


def gemv_space(ws: int):
    for bn, bk, warps in itertools.product((1, 2, 4, 8), (512, 1024, 2048, 4096), (1, 2, 4, 8)):
        each = bn * bk // (32 * warps)
        if 8 <= each <= 64:
            for ahead in (1, 2, 4, 8):
                registers = ahead * each * ws // 2
                if registers <= 96 and (ahead == 1 or ahead * bk <= 16384):
                    yield GemvSchedule(bn, bk, ahead, warps)


def gemv(device, kernels):
    best = {}
    for name, ws in (("qkv", 1), ("o", 1), ("gated", 2), ("down", 1), ("head", 1)):
        space = list(dict.fromkeys(gemv_space(ws)))
        best[name] = search(device, kernels, name, 1, space, copies=2 if name == "head" else 6)
    return best


def chain(device, kernels, best=None, context=128, layers=32):
    """One decode step at batch 1: every launch of every layer under one graph."""
    for pdl in (True, False):
        jobs, names = [], list(kernels)
        schedules = {}
        for name in names:
            _, buckets = choices(kernels[name].kernel, lab.TARGET)
            schedules[name] = (best or {}).get(name) or buckets[0][2]
            jobs.append((kernels[name], name, schedules[name], pdl))
        built = {
            n: Built(device, kernels[n], schedules[n], b) for n, b in zip(names, compile_all(jobs))
        }
        bound = [(n, *tensors_of(n, 1, kernels, context=context)) for n in names]
        table = {n: (p, sizes) for n, p, sizes in bound}
        spaces = {n: built[n].spaces(table[n][1]) for n in names}
        sequence = Sequence(device)
        order = ("qkv", "rope", "attention", "o", "gated", "down")
        keep = []
        for _ in range(layers):
            for n in order:
                p, sizes = table[n]
                own = {
                    c: torch.randn_like(v) * 0.02 if c.startswith("w") else v for c, v in p.items()
                }
                keep.append(own)
                sequence.add(built[n], sizes, own, spaces[n])
        for n in ("head", "argmax"):
            p, sizes = table[n]
            sequence.add(built[n], sizes, p, spaces[n])
        replay = sequence.capture()
        us = median_us(device, replay, 30)
        weights = sum(v.numel() * 2 for own in keep for c, v in own.items() if c.startswith("w"))
        weights += table["head"][0]["w"].numel() * 2
        print(
            f"chain pdl={pdl} context={context}: {us / 1000:.3f} ms, {weights / us / 1e6:.3f} TB/s,"
            f" {len(sequence.items)} launches",
            flush=True,
        )
        RESULTS.setdefault("chain", {})[f"pdl={pdl} context={context}"] = us / 1000
        plan, addresses = sequence.plan()
        plan.profile(addresses)
        torch.cuda.synchronize()
        alone = {}
        for (_, launch), seconds in zip(sequence.items, plan.profile(addresses)):
            alone.setdefault(launch.kernel.name, []).append(seconds * 1e6)
        means = {n: round(sorted(v)[len(v) // 2], 2) for n, v in alone.items()}
        print("   launched alone, us:", means, flush=True)
        RESULTS["chain"][f"alone pdl={pdl}"] = means
        del sequence, keep, replay, plan
        torch.cuda.empty_cache()


def attention(device, kernels):
    for t, context in ((1, 128), (1, 1024), (1, 8192), (32, 2048)):
        space = [
            AttentionSchedule(1, keys, programs, warps, stages)
            for keys in (32, 64, 128)
            for programs in (132, 264, 528, 1056)
            for warps in (2, 4)
            for stages in (1, 2, 3)
        ]
        search(device, kernels, "attention", t, space, copies=3, keep=4, context=context)


def thin(device, kernels):
    for name, ws in (("qkv", 1), ("o", 1), ("gated", 2), ("down", 1)):
        for t, bm in ((8, 16), (32, 32)):
            space = [
                DotSchedule(bm, bn, bk, True, materialize, split, 8, warps, stages)
                for bn in (16, 32, 64, 128)
                for bk in (64, 128, 256)
                for split in ((1, 2, 4) if name in ("o", "down", "qkv") else (1,))
                for warps, stages in ((4, 3), (4, 4), (4, 5), (8, 4))
                for materialize in ((True, False) if name in ("qkv", "gated") else (False,))
                if bn * bk * 2 * ws * stages < 200_000
                and (split == 1 or materialize or name in ("o", "down"))
            ]
            search(device, kernels, name, t, space, keep=4)


def tiled(device, kernels):
    for name, ws in (("gated", 2), ("down", 1)):
        for t in (256, 2048):
            space = [
                DotSchedule(bm, bn, bk, False, name == "gated", 1, 8, warps, stages)
                for bm in (64, 128)
                for bn in (64, 128, 256)
                for bk in (32, 64)
                for warps in (4, 8)
                for stages in (3, 4)
                if (bm * bk + bn * bk * ws) * 2 * stages < 220_000 and bm * bn * ws <= 128 * 256 * 2
            ]
            search(device, kernels, name, t, space, copies=2, keep=4)


def mid(device, kernels):
    """65 to 512 rows: between thin and tiled."""
    for name, ws in (("qkv", 1), ("o", 1), ("gated", 2), ("down", 1)):
        prologue = name in ("qkv", "gated")
        space = [
            DotSchedule(bm, bn, bk, swapped, prologue, split, 8, warps, stages)
            for swapped in (True, False)
            for bm in (64, 128)
            for bn in (64, 128)
            for bk in (64, 128)
            for split in ((1,) if name == "gated" else (1, 2, 4))
            for warps in (4, 8)
            for stages in (3, 4)
            if (bm * bk + bn * bk * ws) * 2 * stages < 220_000
        ]
        search(device, kernels, name, 128, space, copies=4, keep=5)


def prefill(device, kernels):
    for t in (2048, 8192):
        space = [
            AttentionSchedule(queries, keys, 1, warps, stages)
            for queries in (16, 32)
            for keys in (32, 64, 128)
            for warps in (4, 8)
            for stages in (2, 3, 4)
        ]
        search(device, kernels, "attention", t, space, copies=2, context=t, shared=1)
        print(f"   {2 * t * t * S.H * S.D / 1e6:.0f} MFLOP causal", flush=True)


def copied(device, kernels):
    """Tiles that the copy engine fetches: a program a tile, or as many programs as cores."""
    sizes = [(128, 256, 64, 3, 8), (128, 256, 64, 4, 8), (128, 128, 64, 4, 8), (128, 128, 64, 5, 4)]
    sizes += [(64, 256, 64, 4, 4), (64, 128, 64, 6, 4), (128, 64, 128, 4, 4), (256, 128, 64, 3, 8)]
    for name in ("qkv", "o", "gated", "down", "head"):
        before = name not in ("o", "down")
        space = [
            DotSchedule(
                bm, bn, bk, False, before, num_warps=warps, num_stages=stages,
                has_tiles=True, programs=programs,
            )
            for bm, bn, bk, stages, warps in sizes
            for programs in (0, lab.TARGET.num_cores)
        ]  # fmt: skip
        for t in (128, 256, 512, *((2048, 8192) if name != "head" else ())):
            search(device, kernels, name, t, space, copies=2 if t > 512 or name == "head" else 4)


def sample(device, kernels):
    """The sampler: against its reference's guarantees, and its time."""
    for rows in (1, 64):
        p, sizes = tensors_of("sample", rows, kernels)
        p["temperature"].fill_(0.8)
        p["top_k"].fill_(40)
        p["top_p"].fill_(0.9)
        p["seed"].copy_(torch.arange(rows))
        schedule = choices(kernels["sample"].kernel, lab.TARGET)[1][0][2]
        (built,) = compile_all([(kernels["sample"], "sample", schedule, True)])
        sequence = Sequence(device)
        sequence.add(Built(device, kernels["sample"], schedule, built), sizes, p)
        us = median_us(device, sequence.capture(), 7)
        top = p["logits"].topk(40, -1).indices
        inside = (top == p["out"].long()[:, None]).any(-1).all().item()
        p["top_k"].fill_(1)
        sequence.run()
        greedy = (p["out"].long() == p["logits"].argmax(-1)).all().item()
        print(
            f"sample rows={rows}: {us:.1f} us, in the top 40: {inside}, top 1: {greedy}", flush=True
        )
        RESULTS.setdefault("sample", {})[rows] = us


SECTIONS = {f.__name__: f for f in (check, attention, thin, mid, tiled, copied, prefill, sample)}


def main(out: str, wanted: list[str]) -> None:
    torch.manual_seed(0)
    device = CudaDevice(0)
    kernels = lab.llama_kernels(S)
    best = None
    for section in wanted or ["check", "gemv", "chain", "attention", "thin", "tiled"]:
        start = time.time()
        try:
            if section == "chain":
                for context in (128, 1000):
                    chain(device, kernels, best, context)
            elif section == "gemv":
                best = gemv(device, kernels)
            else:
                SECTIONS[section](device, kernels)
        except Exception as error:  # noqa: BLE001 (the other sections still run)
            import traceback

            traceback.print_exc()
            RESULTS[f"{section} failed"] = repr(error)
        print(f"-- {section}: {time.time() - start:.1f} s", flush=True)
        lab.save(Path(out) / "gpu_search.json", RESULTS)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
