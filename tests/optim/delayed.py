#!/usr/bin/env python3
"""delayed.py NDC WORK [--no-mpi] - the update rules of pipedream and pipedream_2bw.

The papers' rules, in plain Python and doubles, against the weights, losses and
norms of generated programs. Let w[s][k] be the weights of stage s after k
updates of a step, p the stages, m the microbatches, L_b the share of microbatch
b of the loss (shares add up to the loss).

pipedream (SOSP 2019), weight stashing, with a pipeline that is empty between
two steps: microbatch b runs forward and backward on w[s][max(0, b - (p - 1 - s))]
on every stage s, and
    w[s][b + 1] = update(w[s][b], gradient of m L_b by the weights of stage s)
2BW (arXiv 2006.09503), of a step as a whole:
    W(t + 1) = update(W(t), gradient of the loss at W(t - 1)), W(-1) = W(0)

Evaluation is at the newest weights. Nothing is even: 17 rows, weights of rows that differ, a microbatch without any;
the stages have unequal numbers of layers.
"""
import json
import math
import os
import random
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "cases"))
from cases import Failure, check, distance, read_tensors, write_tensors  # noqa: E402
from optim import adam, f32, sgd  # noqa: E402

STEPS, BATCH, D, H, LAYERS = 4, 17, 3, 5, 7
MODEL = """
axis batch = 17
axis d = 3
axis h = 5
axis layers = 7
model m(x: f32[batch, d], part: f32[batch]) {
  e = param [d] ~ normal(1.0)
  g = param [d] ~ normal(1.0)
  y = x * e
  repeat layers {
    w = param [d -> h] ~ normal(0.5)
    b = param [h] ~ normal(0.3)
    u = param [h -> d] ~ normal(0.3)
    y = y + sum[h](tanh(sum[d](y * w) + b) * u)
  }
  z = y * g
  return sum[batch](sum[d](z * z) * part) / sum[batch](part)
}
train m {
  data       = arrays("data.safetensors")
  init       = load("init.safetensors")
  optimizer  = %s
  steps      = %d
  checkpoint = every(2)
  eval       = every(4, batches = 1)%s
}
plan {
  %s
}
"""
STAGES = {1: [7], 2: [2, 5], 3: [3, 1, 3], 4: [1, 3, 1, 2]}
# the text, the rule, its numbers, the rate of each step
RULES = {
    "sgd": ("sgd(lr = 0.02)", sgd, {}, [0.02] * 4),
    "momentum": ("sgd(lr = 0.003, momentum = 0.9)", sgd, dict(momentum=0.9), [0.003] * 4),
    "adamw": ("adamw(lr = linear(0.02, warmup = 2), weight_decay = 0.0)", adam, dict(decoupled=True),
              [0.01, 0.02, 0.01, 0.0]),
}
CLOSE = 2e-5


def numbers():
    rng = random.Random(11)
    init = {"e": [f32(rng.gauss(1, 0.2)) for _ in range(D)], "g": [f32(rng.gauss(1, 0.2)) for _ in range(D)]}
    for i in range(LAYERS):
        init["layers.%d.w" % i] = [f32(rng.gauss(0, 0.5)) for _ in range(D * H)]
        init["layers.%d.b" % i] = [f32(rng.gauss(0, 0.3)) for _ in range(H)]
        init["layers.%d.u" % i] = [f32(rng.gauss(0, 0.3)) for _ in range(H * D)]
    rows = STEPS * BATCH
    x = [[f32(rng.gauss(0, 1)) for _ in range(D)] for _ in range(rows)]
    # the first three rows of a batch of 8 microbatches count for nothing
    part = [0.0 if r % BATCH < 3 else f32(rng.random() * (1 + r % 5)) for r in range(rows)]
    return init, x, part


def shape(name):
    return {"w": [D, H], "u": [H, D], "b": [H], "e": [D], "g": [D]}[name[-1]]


# ---- the model ------------------------------------------------------------------

def backprop(w, x, weight):
    """Loss and gradient of one row; `weight` is its part of the mean."""
    y, ys, ts = [a * b for a, b in zip(x, w["e"])], [], []
    for i in range(LAYERS):
        n = "layers.%d." % i
        t = [math.tanh(sum(y[d] * w[n + "w"][d * H + h] for d in range(D)) + w[n + "b"][h]) for h in range(H)]
        ys.append(y)
        ts.append(t)
        y = [y[d] + sum(t[h] * w[n + "u"][h * D + d] for h in range(H)) for d in range(D)]
    z = [a * b for a, b in zip(y, w["g"])]
    loss = weight * sum(v * v for v in z)
    dz = [2 * weight * v for v in z]
    grad = {"g": [a * b for a, b in zip(dz, y)]}
    dy = [a * b for a, b in zip(dz, w["g"])]
    for i in reversed(range(LAYERS)):
        n = "layers.%d." % i
        y, t = ys[i], ts[i]
        dt = [(1 - t[h] ** 2) * sum(dy[d] * w[n + "u"][h * D + d] for d in range(D)) for h in range(H)]
        grad[n + "u"] = [t[h] * dy[d] for h in range(H) for d in range(D)]
        grad[n + "b"] = dt
        grad[n + "w"] = [y[d] * dt[h] for d in range(D) for h in range(H)]
        dy = [dy[d] + sum(dt[h] * w[n + "w"][d * H + h] for h in range(H)) for d in range(D)]
    grad["e"] = [a * b for a, b in zip(dy, x)]
    return loss, grad


def share(w, step, rows, scale):
    """Loss of these rows as a share of the batch's, and scale times its gradient."""
    _, x, part = DATA
    first = step * BATCH
    total = sum(part[first:first + BATCH])
    loss, grad = 0.0, {k: [0.0] * len(v) for k, v in w.items()}
    for r in rows:
        one, g = backprop(w, x[first + r], part[first + r] / total)
        loss += one
        for k in grad:
            grad[k] = [a + scale * b for a, b in zip(grad[k], g[k])]
    return loss, grad


def split(lo, n, parts):
    """The first pieces are one longer."""
    out = []
    for i in range(parts):
        k = n // parts + (i < n % parts)
        out.append(list(range(lo, lo + k)))
        lo += k
    return out


def microbatches(m, dp):
    """Each rank cuts its rows in m; microbatch b is the b-th piece of all."""
    pieces = [split(rows[0], len(rows), m) for rows in split(0, BATCH, dp)]
    return [sum((p[b] for p in pieces), []) for b in range(m)]


def square(grad):
    return sum(v * v for g in grad.values() for v in g)


class Optimizer:
    def __init__(self, rule):
        _, self.f, self.args, self.rates = RULES[rule]
        self.state, self.t = {}, {}

    def update(self, w, grad, step):
        out = {}
        for k in w:
            self.t[k] = self.t.get(k, 0) + 1
            out[k] = self.f(w[k], grad[k], self.state.setdefault(k, {}), self.t[k], self.rates[step], **self.args)
        return out


# ---- the rules ------------------------------------------------------------------

def stage_of(p, name):
    if name in "eg":
        return 0 if name == "e" else p - 1
    ends = [sum(STAGES[p][:s + 1]) for s in range(p)]
    return next(s for s in range(p) if int(name.split(".")[1]) < ends[s])


def pipedream(p, m, dp, rule, late=True):
    w, opt, log = DATA[0], Optimizer(rule), []
    for step in range(STEPS):
        versions, losses, squares = [w], 0.0, 0.0
        for b, rows in enumerate(microbatches(m, dp)):
            seen = {k: versions[max(0, b - (p - 1 - stage_of(p, k)) * late)][k] for k in w}
            loss, grad = share(seen, step, rows, m)
            losses += loss
            squares += square(grad)
            versions.append(opt.update(versions[-1], grad, step))
        w = versions[-1]
        log.append((losses, math.sqrt(squares / m)))
    return w, log


def behind(rule, clip=0.0, late=True):
    before = w = DATA[0]
    opt, log = Optimizer(rule), []
    for step in range(STEPS):
        loss, grad = share(before if late else w, step, range(BATCH), 1.0)
        norm = math.sqrt(square(grad))
        if clip and norm > clip:
            grad = {k: [v * clip / norm for v in g] for k, g in grad.items()}
        log.append((loss, norm))
        before, w = w, opt.update(w, grad, step)
    return w, log


# ---- programs -------------------------------------------------------------------

class Bench:
    def __init__(self, ndc, work, mpi):
        self.ndc, self.work, self.mpi = ndc, work, mpi
        self.ran, self.worst = 0, 0.0
        init, x, part = DATA
        write_tensors(os.path.join(work, "init.safetensors"), {k: ("F32", shape(k), v) for k, v in init.items()})
        rows = len(x)
        write_tensors(os.path.join(work, "data.safetensors"), {
            "x": ("F32", [rows, D], [v for r in x for v in r]), "part": ("F32", [rows], part)})

    def call(self, words, ok=0):
        env = dict(os.environ, NDC_CFLAGS="-O1" if os.environ.get("NDC_LONG") else "-Og", NDRT_JITTER="200")
        r = subprocess.run(words, cwd=self.work, capture_output=True, text=True, timeout=120, env=env)
        check(r.returncode == ok, "%s\nexit %d\n%s" % (" ".join(words), r.returncode, r.stderr[-2000:]))
        return r.stdout + r.stderr

    def compile(self, name, kind, p, m, rule, mesh="", lines="", clip="", stages=True, ok=0):
        plan = "mesh pp = %d%s\n  pipeline layers -> pp, schedule = %s, microbatches = %d%s%s" % (
            p, mesh, kind, m, ", stages = [%s]" % ", ".join(map(str, STAGES[p])) if stages else "", lines)
        with open(os.path.join(self.work, name + ".nd"), "w") as f:
            f.write(MODEL % (RULES[rule][0], STEPS, clip, plan))
        return self.call([self.ndc, name + ".nd", "-o", name], ok)

    def run(self, name, *options, launch=()):
        shutil.rmtree(os.path.join(self.work, "dir"), ignore_errors=True)
        if os.path.exists(os.path.join(self.work, "log")):
            os.remove(os.path.join(self.work, "log"))
        self.call(list(launch) + ["./" + name, "--threads", "1", "--log", "log", "--save", "st", "--checkpoints",
                                  "dir", "--eval-data", "data.safetensors"] + list(options))
        lines = [json.loads(x) for x in open(os.path.join(self.work, "log"))]
        self.ran += 1
        log = [(x["loss"], x["grad_norm"]) for x in lines if "step" in x]
        return read_tensors(os.path.join(self.work, "st")), log, [x["loss"] for x in lines if "eval" in x]

    def compare(self, what, got, want):
        far = distance(got[0], {k: want[0][k] for k in got[0]})
        self.worst = max(self.worst, far)
        check(far < CLOSE, "%s: weights are off by %.1e" % (what, far))
        check(len(got[1]) == STEPS, "%s: %d steps" % (what, len(got[1])))
        after, _ = share(want[0], 0, range(BATCH), 0.0)
        check(abs(got[2][0] - after) <= CLOSE * after, "%s: evaluation %r, not %r" % (what, got[2][0], after))
        for a, b in zip(got[1], want[1]):
            check(all(abs(x - y) <= CLOSE * abs(y) for x, y in zip(a, b)),
                  "%s: loss and norm are %r, not %r" % (what, a, b))


def differs(what, a, b):
    far = distance(a[0], b[0])
    check(far > 20 * CLOSE, "%s: the rule makes no difference (%.1e)" % (what, far))


def rules(bench):
    for p, rule in ((1, "momentum"), (2, "sgd"), (3, "momentum"), (4, "adamw")):
        for m0, ms in ((2, (3, 5, 8)), (1, (1,))):
            name = "d%d_%d" % (p, m0)
            bench.compile(name, "pipedream", p, m0, rule)
            for m in ms:
                what, want = "pipedream p=%d m=%d %s" % (p, m, rule), pipedream(p, m, 1, rule)
                if p > 1 and m > 1:
                    differs(what, want, pipedream(p, m, 1, rule, late=False))
                got = bench.run(name, "--microbatches", str(m))
                bench.compare(what, got, want)
                inline = bench.run(name, "--microbatches", str(m), "--messages", "inline")
                check(inline == got, what + ": inline differs")
                if bench.mpi and p in (2, 4) and m in (1, 5):
                    mpi = bench.run(name, "--microbatches", str(m), launch=["mpirun", "--oversubscribe", "-n", str(p)])
                    check(mpi == got, what + ": mpirun differs")
    for p, rule in ((1, "sgd"), (2, "adamw"), (3, "momentum"), (4, "sgd")):
        clip = 6.0 if p != 1 else 0.0
        name, want = "b%d" % p, behind(rule, clip)
        differs("2bw %s" % rule, want, behind(rule, clip, late=False))
        bench.compile(name, "pipedream_2bw", p, 4, rule, clip="\n  clip = %g" % clip)
        for m in (5, 8):
            what = "pipedream_2bw p=%d m=%d %s" % (p, m, rule)
            got = bench.run(name, "--microbatches", str(m))
            bench.compare(what, got, want)
            if bench.mpi and p in (2, 4) and m == 5:
                mpi = bench.run(name, "--microbatches", str(m), launch=["mpirun", "--oversubscribe", "-n", str(p)])
                check(mpi == got, what + ": mpirun differs")


def data_parallel(bench):
    """Sums of gradients and pieces of weights, per microbatch; tests of both in
    one: what is gathered once per step is gathered before each action."""
    want = pipedream(2, 3, 2, "momentum")
    differs("dp", want, pipedream(2, 3, 2, "momentum", late=False))
    for name, lines in (("dp", ""), ("z1", "\n  zero 1 over dp"), ("z2", "\n  zero 2 over dp"),
                        ("z3", "\n  zero 3 over dp")):
        bench.compile(name, "pipedream", 2, 3, "momentum", ", dp = 2", "\n  shard batch -> dp" + lines)
        got = bench.run(name, "--check-replicas")
        bench.compare(name, got, want)
        if bench.mpi and name in ("dp", "z2"):
            mpi = bench.run(name, launch=["mpirun", "--oversubscribe", "-n", "4"])
            check(mpi == got, name + ": mpirun differs")
    bench.compile("b_z2", "pipedream_2bw", 2, 3, "momentum", ", dp = 2", "\n  shard batch -> dp\n  zero 2 over dp")
    bench.compare("2bw, zero 2", bench.run("b_z2"), behind("momentum"))


def recompute(bench):
    """Forward runs again on the weights that it ran on first."""
    want = pipedream(3, 5, 1, "momentum")
    for name, how in (("rb", "block"), ("ra", "auto(4600)")):
        bench.compile(name, "pipedream", 3, 5, "momentum", lines="\n  recompute " + how)
        bench.compare("recompute " + how, bench.run(name), want)
    with open(os.path.join(bench.work, "ra.c")) as f:
        check("again = true" in f.read(), "recompute auto(4600): no stage runs again")


def resume(bench):
    """What goes on from a checkpoint, as if nothing had been: every bit."""
    for name in ("d3_2", "b3", "b_z2", "z1"):
        whole = bench.run(name)
        folder = os.path.join(bench.work, "dir")
        os.remove(os.path.join(folder, "step-4.safetensors"))
        shutil.rmtree(os.path.join(bench.work, "half"), ignore_errors=True)
        os.rename(folder, os.path.join(bench.work, "half"))
        rest = bench.run(name, "--resume", "half")
        check(rest[0] == whole[0] and rest[1] == whole[1][2:], name + ": goes on differently")


def refused(bench):
    for name, options, text in (
            ("d3_2", ["--clip", "1"], "the norm is over all stages"),
            ("d3_2", ["--schedule", "1f1b"], "compiled for pipedream alone"),
            ("b3", ["--schedule", "pipedream"], "compiled for pipedream_2bw alone"),
            ("b3", ["--microbatches", "2"], "m >= p")):
        said = bench.call(["./" + name] + options, ok=2)
        check(text in said, "%s %s: %s" % (name, options, said))
    said = bench.call([bench.ndc, "verify", "d3_2.nd"])
    check("pipedream changes what is computed: compared is" in said, "verify: " + said)
    with open(os.path.join(bench.work, "x.csv"), "w") as f:
        f.write("0F0,0F1,0B0,0U0,0B1,0U1\n1F0,1B0,1U0,1F1,1B1,1U1\n")
    said = bench.compile("file", 'file("x.csv")', 2, 2, "sgd", ok=1)
    check("updates weights on its way" in said, "a file with updates: " + said)


def main():
    global DATA
    ndc, work = os.path.abspath(sys.argv[1]), sys.argv[2]
    DATA = numbers()
    bench = Bench(ndc, work, "--no-mpi" not in sys.argv)
    failed = 0
    for test in (rules, data_parallel, recompute, resume, refused):
        try:
            test(bench)
        except (Failure, subprocess.TimeoutExpired) as e:
            failed += 1
            print("FAIL:", test.__name__, e)
    print("%d runs, weights are off by %.1e at most" % (bench.ran, bench.worst))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
