#!/usr/bin/env python3
"""Every optimizer's weights after 5 steps, from the published formulas.

    optim.py numbers            prints expected.json: f64, Python alone
    optim.py torch              compares expected.json with PyTorch's optimizers
    optim.py train NDC WORK     trains with generated programs and compares

The loss of the model is sum(weight * input), so that the gradient of a step is
the sum of the batch's rows, given by the data. Sizes are odd; `l` is a list of
four matrices, `e` a matrix that muon leaves to AdamW, `u` a vector.

Sources: SGD with momentum as in PyTorch (Sutskever et al. 2013, without the
rate in the buffer), Adam arXiv 1412.6980, AdamW arXiv 1711.05101, Lion arXiv
2302.06675, Muon as torch.optim.Muon (https://kellerjordan.github.io/posts/muon).
"""
import json
import math
import os
import random
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "cases"))
from cases import read_tensors, write_tensors  # noqa: E402

STEPS, BATCH = 5, 2
SHAPES = {"w": [5, 3], "v": [3, 5], "l": [4, 5, 3], "e": [5, 3], "u": [3]}
MODEL = """
axis batch = 2
axis a = 5
axis b = 3
axis c = 4
model t(gw: f32[batch, a, b], gv: f32[batch, b, a], gl: f32[batch, c, a, b],
        ge: f32[batch, a, b], gu: f32[batch, b]) {
  w = param [a -> b] ~ zeros
  v = param [b -> a] ~ zeros
  l = param [c, a -> b] ~ zeros
  e = param [a -> b] ~ zeros
  u = param [b] ~ zeros
  return sum[batch, a, b](gw * w) + sum[batch, a, b](gv * v) +
         sum[batch, c, b](sum[a](gl * l)) + sum[batch, a, b](ge * e) +
         sum[batch, b](gu * u)
}
train t {
  data = arrays("data.safetensors")
  init = load("init.safetensors")
  steps = %d
  optimizer = %s
}
"""
# text in the train block: (rule, its numbers)
OPTIMIZERS = {
    "sgd(lr = 0.1)": ("sgd", dict(lr=0.1)),
    "sgd(lr = 0.1, momentum = 0.9)": ("sgd", dict(lr=0.1, momentum=0.9)),
    "sgd(lr = 0.1, momentum = 0.9, nesterov = true)":
        ("sgd", dict(lr=0.1, momentum=0.9, nesterov=True)),
    "sgd(lr = 0.1, weight_decay = 0.3)": ("sgd", dict(lr=0.1, decay=0.3)),
    "sgd(lr = linear(0.1, warmup = 2), momentum = 0.8, nesterov = true, weight_decay = 0.3)":
        ("sgd", dict(lr=[0.05, 0.1, 0.1 * 2 / 3, 0.1 / 3, 0.0], momentum=0.8, nesterov=True, decay=0.3)),
    "adam(lr = 0.02)": ("adam", dict(lr=0.02)),
    "adam(lr = 0.02, betas = [0.8, 0.95], eps = 1e-3, weight_decay = 0.3)":
        ("adam", dict(lr=0.02, betas=(0.8, 0.95), eps=1e-3, decay=0.3)),
    "adamw(lr = 0.02)": ("adamw", dict(lr=0.02, decay=0.01)),
    "adamw(lr = 0.02, betas = [0.8, 0.95], weight_decay = 0.3)":
        ("adamw", dict(lr=0.02, betas=(0.8, 0.95), decay=0.3)),
    "lion(lr = 0.01)": ("lion", dict(lr=0.01)),
    "lion(lr = 0.01, betas = [0.8, 0.95], weight_decay = 0.3)":
        ("lion", dict(lr=0.01, betas=(0.8, 0.95), decay=0.3)),
    "muon(lr = 0.02, adamw = [\"e\"])": ("muon", dict(lr=0.02, decay=0.1)),
    "muon(lr = 0.02, momentum = 0.8, nesterov = false, steps = 3, weight_decay = 0.3, adamw = [\"e\"], "
    "adamw_lr = 0.005, betas = [0.8, 0.95])":
        ("muon", dict(lr=0.02, momentum=0.8, nesterov=False, steps=3, decay=0.3, adamw_lr=0.005,
                      betas=(0.8, 0.95))),
}
# mesh, further lines of the plan
MESHES = {
    "one": ("x = 1", ""),
    "dp": ("dp = 2", "shard batch -> dp"),
    "rows": ("tp = 2", "shard a -> tp"),
    "grid": ("dp = 2, x = 2, y = 3", "shard batch -> dp, a -> x, b -> y"),
    "list": ("x = 3, y = 2", "shard c -> x, b -> y"),
    "zero": ("dp = 2, tp = 2", "shard batch -> dp, a -> tp\n  zero 1 over dp"),
}


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def size(shape):
    return math.prod(shape)


def numbers():
    """Initial weights, and per step the rows of the batch, all exact in f32."""
    rng = random.Random(5)
    init = {k: [f32(rng.gauss(0, 1)) for _ in range(size(s))] for k, s in SHAPES.items()}
    rows = [{k: [f32(rng.gauss(0, 1)) for _ in range(size(s))] for k, s in SHAPES.items()}
            for _ in range(STEPS * BATCH)]
    return init, rows


def gradient(rows, t, name):
    return [sum(x) for x in zip(*(r[name] for r in rows[t * BATCH:(t + 1) * BATCH]))]


# ---- the published updates, on lists ------------------------------------------

def sgd(w, g, s, t, lr, momentum=0.0, nesterov=False, decay=0.0):
    g = [x + decay * y for x, y in zip(g, w)]
    if momentum:
        s["m"] = g if t == 1 else [momentum * m + x for m, x in zip(s["m"], g)]
        g = [x + momentum * m for x, m in zip(g, s["m"])] if nesterov else s["m"]
    return [y - lr * x for y, x in zip(w, g)]


def adam(w, g, s, t, lr, betas=(0.9, 0.999), eps=1e-8, decay=0.0, decoupled=False):
    b1, b2 = betas
    if decoupled:
        w = [y * (1 - lr * decay) for y in w]
    else:
        g = [x + decay * y for x, y in zip(g, w)]
    s["m"] = [b1 * m + (1 - b1) * x for m, x in zip(s.get("m", [0] * len(g)), g)]
    s["v"] = [b2 * v + (1 - b2) * x * x for v, x in zip(s.get("v", [0] * len(g)), g)]
    return [y - lr * (m / (1 - b1 ** t)) / (math.sqrt(v / (1 - b2 ** t)) + eps)
            for y, m, v in zip(w, s["m"], s["v"])]


def lion(w, g, s, t, lr, betas=(0.9, 0.99), decay=0.0):
    b1, b2 = betas
    m = s.get("m", [0] * len(g))
    c = [b1 * x + (1 - b1) * y for x, y in zip(m, g)]
    s["m"] = [b2 * x + (1 - b2) * y for x, y in zip(m, g)]
    return [y - lr * ((x > 0) - (x < 0) + decay * y) for y, x in zip(w, c)]


def product(a, b):
    return [[sum(x * y for x, y in zip(r, c)) for c in zip(*b)] for r in a]


def transpose(a):
    return [list(r) for r in zip(*a)]


def newton_schulz(x, steps):
    tall = len(x) > len(x[0])
    x = transpose(x) if tall else x
    norm = max(math.sqrt(sum(v * v for r in x for v in r)), 1e-7)
    x = [[v / norm for v in r] for r in x]
    for _ in range(steps):
        a = product(x, transpose(x))
        aa = product(a, a)
        b = [[-4.7750 * p + 2.0315 * q for p, q in zip(r, z)] for r, z in zip(a, aa)]
        x = [[3.4445 * p + q for p, q in zip(r, z)] for r, z in zip(x, product(b, x))]
    return transpose(x) if tall else x


def muon(w, g, s, t, lr, rows, momentum=0.95, nesterov=True, steps=5, decay=0.0):
    """One matrix [in = rows, out]; PyTorch's is its transpose."""
    s["m"] = [m + (1 - momentum) * (x - m) for m, x in zip(s.get("m", [0] * len(g)), g)]
    d = [x + momentum * (m - x) for x, m in zip(g, s["m"])] if nesterov else s["m"]
    cols = len(w) // rows
    o = newton_schulz([d[i * cols:(i + 1) * cols] for i in range(rows)], steps)
    rate = lr * math.sqrt(max(1, cols / rows))
    return [y * (1 - lr * decay) - rate * x for y, x in zip(w, [v for r in o for v in r])]


def step(rule, name, w, g, s, t, args):
    """One tensor; weight decay is for matrices."""
    args = dict(args, decay=args.get("decay", 0.0) if name != "u" else 0.0)
    if isinstance(args["lr"], list):
        args["lr"] = args["lr"][t - 1]
    if rule == "sgd":
        return sgd(w, g, s, t, **args)
    if rule == "lion":
        return lion(w, g, s, t, **args)
    if rule != "muon":
        return adam(w, g, s, t, decoupled=rule == "adamw", **args)
    betas = args.pop("betas", (0.9, 0.999))
    adamw_lr = args.pop("adamw_lr", args["lr"])
    if name in "eu":
        return adam(w, g, s, t, adamw_lr, betas, decay=args["decay"], decoupled=True)
    *lead, rows, cols = SHAPES[name]
    out, n = [], rows * cols
    for i in range(size(lead)):
        out += muon(w[i * n:(i + 1) * n], g[i * n:(i + 1) * n], s.setdefault(i, {}), t, rows=rows, **args)
    return out


def expected():
    init, rows = numbers()
    result = {}
    for text, (rule, args) in OPTIMIZERS.items():
        result[text] = {}
        for name in SHAPES:
            w, s = init[name], {}
            for t in range(1, STEPS + 1):
                w = step(rule, name, w, gradient(rows, t - 1, name), s, t, args)
            result[text][name] = [float("%.10g" % x) for x in w]
    return result


# ---- against PyTorch ------------------------------------------------------------

def torch_run(rule, args):
    import torch
    init, rows = numbers()
    p = {k: torch.nn.Parameter(torch.tensor(init[k], dtype=torch.float64).reshape(s))
         for k, s in SHAPES.items()}
    args = dict(args)
    lrs = args["lr"] if isinstance(args["lr"], list) else [args["lr"]] * STEPS
    args["weight_decay"] = args.pop("decay", 0.0)
    makers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    args["lr"] = lrs[0]
    opt = makers[rule]([{"params": [p[k] for k in "wvle"]}, {"params": [p["u"]], "weight_decay": 0.0}], **args)
    for t in range(STEPS):
        for group in opt.param_groups:
            group["lr"] = lrs[t]
        for k, s in SHAPES.items():
            p[k].grad = torch.tensor(gradient(rows, t, k), dtype=torch.float64).reshape(s)
        opt.step()
    return {k: v.detach().flatten().tolist() for k, v in p.items()}


def torch_muon(args):
    """Matrices alone, transposed as PyTorch stores them; its product in f32."""
    import torch
    import torch.optim._muon as module
    init, rows = numbers()
    args = dict(args, weight_decay=args.get("decay", 0.0), ns_steps=args.get("steps", 5))
    for k in ("decay", "steps", "adamw_lr", "betas"):
        args.pop(k, None)
    bf16, torch.Tensor.bfloat16 = torch.Tensor.bfloat16, lambda x: x.clone()
    out = {}
    for k in "wv":
        q = torch.nn.Parameter(torch.tensor(init[k], dtype=torch.float64).reshape(SHAPES[k]).T.contiguous())
        opt = module.Muon([q], **args)
        for t in range(STEPS):
            g = torch.tensor(gradient(rows, t, k), dtype=torch.float64)
            q.grad = g.reshape(SHAPES[k]).T.contiguous()
            opt.step()
        out[k] = q.detach().T.flatten().tolist()
    torch.Tensor.bfloat16 = bf16
    return out


def against_torch(want):
    worst = 0
    for text, (rule, args) in OPTIMIZERS.items():
        if rule == "lion":
            continue
        got = torch_muon(args) if rule == "muon" else torch_run(rule, args)
        d = max(abs(x - y) for k in got for x, y in zip(got[k], want[text][k]))
        print("%.1e  %s" % (d, text))
        worst = max(worst, d)
    return worst < 1e-6


# ---- against generated programs ---------------------------------------------------

def train(ndc, work, text, mesh):
    axes, more = MESHES[mesh]
    with open("t.nd", "w") as f:
        f.write(MODEL % (STEPS, text) + "plan {\n  mesh %s\n  %s\n}\n" % (axes, more))
    for cmd in ([ndc, "t.nd", "-o", "t"], ["./t", "--save", "out.safetensors"]):
        r = subprocess.run(cmd, capture_output=True, text=True, timeout=120)
        if r.returncode:
            sys.exit("%s\n%s" % (" ".join(cmd), r.stderr))
    return read_tensors("out.safetensors")


def against_programs(want, ndc, work):
    init, rows = numbers()
    ndc = os.path.abspath(ndc)
    os.chdir(work)
    write_tensors("init.safetensors", {k: ("F32", SHAPES[k], init[k]) for k in SHAPES})
    write_tensors("data.safetensors", {
        "g" + k: ("F32", [len(rows)] + s, [x for r in rows for x in r[k]]) for k, s in SHAPES.items()})
    ok = True
    for text, (rule, _) in OPTIMIZERS.items():
        for mesh in MESHES if rule in ("lion", "muon") else ["one"]:
            got = train(ndc, work, text, mesh)
            d = max(abs(x - y) / max(1, abs(y)) for k in SHAPES for x, y in zip(got[k], want[text][k]))
            ok = ok and d <= 1e-6
            print("%s %.1e  %-5s %s" % ("ok   " if d <= 1e-6 else "WRONG", d, mesh, text))
    return ok


def main():
    with open(os.path.join(HERE, "expected.json")) if sys.argv[1] != "numbers" else open(os.devnull) as f:
        want = json.loads(f.read() or "{}")
    if sys.argv[1] == "numbers":
        print(json.dumps(expected(), indent=0))
        return 0
    if sys.argv[1] == "torch":
        return 0 if against_torch(want) else 1
    now = expected()
    if any(abs(x - y) > 1e-9 for t in want for k in SHAPES for x, y in zip(now[t][k], want[t][k])):
        print("expected.json is not what `optim.py numbers` prints")
        return 1
    return 0 if against_programs(want, sys.argv[2], sys.argv[3]) else 1


if __name__ == "__main__":
    sys.exit(main())
