#!/usr/bin/env python3
"""Known right answers for what goes wrong in parallel training.

    cases.py --ndc BUILD/ndc [--launch local|mpi|both] [--work DIR] CASE ...

Each case compiles a fixture for several meshes, runs it, and compares losses,
gradient norms and saved parameters with closed forms or with one rank. The
sizes are odd, the optimizer is SGD and the clip is active on purpose: Adam and
powers of two hide most of these faults. With `both` a program is compiled once,
runs as threads and as processes, and must say and save the same bits.
"""
import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
RULES = "batch -> dp, kvheads -> tp, ffn -> tp, vocab -> tp, expert -> ep"

# name: (mesh axes, sequence parallel, microbatches, extra plan lines, --set)
MESHES = {
    "1": ("", False, 1, "", []),
    "dp2": ("dp = 2", False, 1, "", []),
    "dp3": ("dp = 3", False, 1, "", []),
    "dp4": ("dp = 4", False, 1, "", []),
    "tp2": ("tp = 2", False, 1, "", []),
    "tp4": ("tp = 4", False, 1, "", []),
    "sp2": ("tp = 2", True, 1, "", []),
    "accum4": ("", False, 4, "", []),
    "pp2": ("pp = 2", False, 2, "", []),
    "pp3": ("pp = 3", False, 3, "", []),
    "pp4": ("pp = 4", False, 4, "", []),
    "dp2tp2": ("dp = 2, tp = 2", True, 1, "", []),
    "dp2pp2": ("pp = 2, dp = 2", False, 2, "", []),
    "tp2pp2": ("pp = 2, tp = 2", True, 2, "", []),
    "2x2x2": ("pp = 2, dp = 2, tp = 2", True, 4, "", []),
    "zero1": ("dp = 4", False, 1, "zero 1 over dp", []),
    "2x2x2zero1": ("pp = 2, dp = 2, tp = 2", True, 2, "zero 1 over dp", []),
    "zero2": ("dp = 4", False, 1, "zero 2 over dp", []),
    "zero3": ("dp = 4", False, 1, "zero 3 over dp", []),
    "zero3dp3": ("dp = 3", False, 2, "zero 3 over dp", []),
    "dp2tp2zero1": ("dp = 2, tp = 2", True, 1, "zero 1 over dp", []),
    "dp2tp2zero2": ("dp = 2, tp = 2", True, 1, "zero 2 over dp", []),
    "dp2tp2zero3": ("dp = 2, tp = 2", True, 1, "zero 3 over dp", []),
    "dp2pp2zero1": ("pp = 2, dp = 2", False, 4, "zero 1 over dp", []),
    "dp2pp2zero2": ("pp = 2, dp = 2", False, 4, "zero 2 over dp", []),
    "dp2pp2zero3": ("pp = 2, dp = 2", False, 4, "zero 3 over dp", []),
    "2x2x2zero3": ("pp = 2, dp = 2, tp = 2", True, 2, "zero 3 over dp\n  recompute block", []),
    "fsdp": ("dp = 4", False, 1, "shard params d -> dp", []),
    "hybrid": ("out = 2, dp = 2", False, 2, "shard batch -> (out, dp)\n  shard params d -> dp", []),
    "hybrid1": ("out = 2, dp = 2", False, 1, "shard batch -> (out, dp)\n  shard grads d -> dp\n"
                "  shard optimizer d -> out", []),
    "epdpzero3": ("ep = 2", False, 1, "shard batch -> ep\n  zero 3 over ep", []),
    "dp2ep2zero3": ("dp = 2, ep = 2", False, 1, "zero 3 over dp", []),
    "ep2": ("ep = 2", False, 1, "", []),
    "ep3": ("ep = 3", False, 4, "", []),
    "epdp": ("ep = 2", False, 1, "shard batch -> ep", []),
    "dp2ep2": ("dp = 2, ep = 2", False, 1, "zero 1 over dp", []),
    "tp2ep2": ("tp = 2, ep = 2", True, 2, "", []),
    "pp2ep2": ("pp = 2, ep = 2", False, 4, "", []),
    # rows and experts by one mesh axis: rows travel
    "eprows3": ("ep = 3", False, 2, "shard batch -> ep", []),
    "dp2eprows2": ("dp = 2, ep = 2", False, 1, "shard batch -> (dp, ep)\n  recompute block", []),
    "tp2eprows2": ("tp = 2, ep = 2", True, 2, "shard batch -> ep", []),
    "pp2eprows2": ("pp = 2, ep = 2", False, 4, "shard batch -> ep", []),
}


# name: (fixture, text, its replacement, text, its replacement, ...)
DERIVED = {
    "gmoe": ("g", "axis layers = 4", "axis layers = 4\naxis expert = 4",
             "  repeat layers {", "  aux = 0.0\n  repeat layers {",
             "    x = x + dropout(mlp(norm[d](x) as ln2) as mlp, p_drop)",
             "    y, a, z = moe[seq, d -> expert, ffn](norm[d](x) as ln2, k = 2) as moe\n"
             "    x = x + y\n    aux = aux + a + 0.1 * z",
             "return mean[batch, seq](cross_entropy[vocab](logits, targets))",
             "return mean[batch](mean[seq](cross_entropy[vocab](logits, targets)) + 0.1 * aux)"),
    # of one gate that sums to 1 the router would learn nothing
    "gmoe1": ("gmoe", "k = 2", "k = 1, renormalise = false"),
    "gmuon": ("g", "sgd(lr = 0.1)", 'muon(lr = constant(0.02, warmup = 2), adamw = ["wte", "wpe"], adamw_lr = 0.002)\n'
              '  freeze = ["*.k.b"]'),   # without a gradient but rounding, of which AdamW would take the sign
    "gdecay": ("g", "sgd(lr = 0.1)", "adamw(lr = 0.1, weight_decay = 0.1)"),
    "gnodecay": ("g", "sgd(lr = 0.1)", "adamw(lr = 0.1, weight_decay = 0)"),
    "gfrozen": ("g", "seed      = 1", 'seed      = 1\n  freeze = ["wte", "layers.mlp.*", "*.ln1.g"]'),
    "gmetric": ("g", "  output logits\n", """  output logits
  hit = logits[vocab: targets] == max[vocab](logits)
  sure = max[seq](max[vocab](logits))
  output hit
  output sure
"""),
    "gmetric2": ("gmetric", 'text("g.txt")',
                 'text("g.txt", eval = "eval.txt")\n  metric = [hit, sure]\n  eval = every(2)'),
}


LONG = bool(os.environ.get("NDC_LONG"))


def some(meshes):
    """All of them, or every second one where time is short."""
    return meshes if LONG else meshes[1::2]


class Failure(Exception):
    pass


def check(ok, text):
    if not ok:
        raise Failure(text)


# ---- safetensors ------------------------------------------------------------

def write_tensors(path, tensors):
    """tensors: name -> (dtype 'F32' or 'I32', shape, flat list)."""
    head, blobs, at = {}, [], 0
    for name, (dtype, shape, flat) in tensors.items():
        blob = struct.pack("<%d%s" % (len(flat), "f" if dtype == "F32" else "i"), *flat)
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(blob)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def read_tensors(path):
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        a, b = t["data_offsets"]
        check(t["dtype"] == "F32", name + ": not F32")
        out[name] = struct.unpack("<%df" % ((b - a) // 4), raw[8 + n + a:8 + n + b])
    return out


def distance(a, b):
    """Largest difference over the root mean square, over all tensors."""
    check(a.keys() == b.keys(), "different tensors: %s" % (a.keys() ^ b.keys()))
    worst = 0
    for k in a:
        check(len(a[k]) == len(b[k]), k + ": different sizes")
        rms = math.sqrt(sum(x * x for x in b[k]) / len(b[k])) or 1
        worst = max(worst, max(abs(x - y) for x, y in zip(a[k], b[k])) / rms)
    return worst


# ---- compiling and running ------------------------------------------------------

class Bench:
    def __init__(self, args):
        self.ndc = os.path.abspath(args.ndc)
        self.launch = args.launch
        self.work = os.path.abspath(args.work)
        self.built = {}
        os.makedirs(self.work, exist_ok=True)
        rng = random.Random(7)
        with open(self.path("g.txt"), "wb") as f:
            f.write(bytes(rng.randrange(61) for _ in range(10000)))

    def path(self, name):
        return os.path.join(self.work, name)

    def plan(self, mesh, sp, micro, extra, schedule, stages=None):
        rules = RULES.split(", ")
        axes = [a.split(" = ")[0] for a in mesh.split(", ") if a]
        rules = [r for r in rules if r.split()[-1] in axes and "shard " + r.split()[0] + " " not in extra]
        if sp:
            rules.append("seq -> tp")
        lines = ["plan {", "  mesh " + (mesh or "dp = 1")]
        if extra.startswith("shard batch"):    # before the rule for experts
            lines.append("  " + extra)
            rules = [r for r in rules if r != "batch -> dp"]
        if rules:
            lines.append("  shard " + ", ".join(rules))
        if "pp" in axes:
            lines.append("  pipeline layers -> pp, schedule = %s, microbatches = %d%s"
                         % (schedule, micro, ", stages = %s" % stages if stages else ""))
        elif micro > 1:
            lines.append("  microbatches %d" % micro)
        if extra and not extra.startswith("shard batch"):
            lines.append("  " + extra)
        return "\n".join(lines + ["}", ""])

    def source(self, fixture):
        if fixture not in DERIVED:
            return os.path.join(HERE, fixture + ".nd")
        base, *pairs = DERIVED[fixture]
        text = open(self.source(base)).read()
        for old, new in zip(pairs[::2], pairs[1::2]):
            check(text.count(old) == 1, fixture + ": the text to replace is gone")
            text = text.replace(old, new)
        path = self.path(fixture + ".nd")
        with open(path, "w") as f:
            f.write(text)
        return path

    def compile(self, fixture, mesh="1", schedule="1f1b", micro=None, sets=(), stages=None, options=(),
                expect=0):
        spec = MESHES[mesh]
        m = micro or spec[2]
        text = self.plan(spec[0], spec[1], m, spec[3], schedule, stages)
        # One axis exists only in some fixtures: keep the rules that apply.
        path = self.source(fixture)
        source = open(path).read()
        kept = []
        for line in text.split("\n"):
            if line.startswith("  shard ") and line[2:] not in spec[3].split("\n  "):
                rules = [r for r in re.split(r", (?![^(]*\))", line[8:]) if "axis %s " % r.split()[0] in source]
                if not rules:
                    continue
                line = "  shard " + ", ".join(rules)
            kept.append(line)
        text = "\n".join(kept)
        key = (fixture, text, tuple(sets), tuple(options), expect)
        if key in self.built:
            return self.built[key]
        out = self.path("%s_%d" % (fixture, len(self.built)))
        with open(out + ".plan", "w") as f:
            f.write(text)
        cmd = [self.ndc, path, "-o", out, "--plan", out + ".plan", *options]
        for s in sets:
            cmd += ["--set", s]
        r = subprocess.run(cmd, capture_output=True, text=True, timeout=120)
        check(r.returncode == expect, "%s\nexit %d:\n%s" % (" ".join(cmd), r.returncode, r.stderr))
        ranks = 1
        for a in spec[0].split(", "):
            if a:
                ranks *= int(a.split(" = ")[1])
        self.built[key] = (out, ranks, r.stderr)
        return self.built[key]

    def run(self, program, *options, expect=0, mpi=True):
        """Without mpi, `both` is threads alone where time is short: another run is about processes."""
        if self.launch == "both" and not mpi and not LONG:
            return self.run_as("local", program, options, expect)
        if self.launch != "both":
            return self.run_as(self.launch, program, options, expect)
        # Sums of gradients beside backward, in small calls, in one of them.
        mine, other = (self.run_as(x, program, options + more, expect)
                       for x, more in (("local", ("--overlap", "on")), ("mpi", ())))
        for r, r1 in zip(mine[0], other[0]):
            for key in ("step", "loss", "grad_norm", "lr"):
                check(r.get(key) == r1.get(key), "%s: %s differs under mpirun" % (program[0], key))
        check(len(mine[0]) == len(other[0]) and mine[1] == other[1], program[0] + ": differs under mpirun")
        return mine

    def run_as(self, launch, program, options, expect):
        exe, ranks, _ = program
        log, save = exe + ".jsonl", exe + ".out.safetensors"
        for f in (log, save):
            if os.path.exists(f):
                os.remove(f)
        cmd = [exe, "--log", log, "--save", save] + list(options)
        env = dict(os.environ, NDRT_EARLY="13")
        if launch == "mpi":
            env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
            cmd = ["mpirun", "--oversubscribe", "-n", str(ranks)] + cmd
        r = subprocess.run(cmd, capture_output=True, text=True, timeout=120, cwd=self.work, env=env)
        check(r.returncode == expect, "%s\nexit %d:\n%s%s" % (" ".join(cmd), r.returncode, r.stdout, r.stderr))
        rows = [json.loads(x) for x in open(log)] if os.path.exists(log) else []
        return rows, read_tensors(save) if os.path.exists(save) else {}, r.stdout + r.stderr


def near(a, b, tol=2e-6, what="value"):
    check(abs(a - b) <= tol * max(1, abs(b)), "%s: %.7g, want %.7g" % (what, a, b))


def near_list(a, b, tol=2e-6, what="value"):
    check(len(a) == len(b), what + ": different lengths")
    for x, y in zip(a, b):
        near(x, y, tol, what)


def same_run(b, fixture, meshes, options=(), tol=1e-5, sets=(), loss_tol=None, **kw):
    """Losses, gradient norms and parameters of every mesh equal one rank's."""
    rows1, w1, _ = b.run(b.compile(fixture, "1", sets=sets), *options)
    for mesh in meshes:
        rows, w, _ = b.run(b.compile(fixture, mesh, sets=sets, **kw), *options)
        check(len(rows) == len(rows1), mesh + ": different number of steps")
        for r, r1 in zip(rows, rows1):
            near(r["loss"], r1["loss"], loss_tol or tol, "%s step %d loss" % (mesh, r["step"]))
            near(r["grad_norm"], r1["grad_norm"], tol, "%s step %d grad_norm" % (mesh, r["step"]))
        d = distance(w, w1)
        check(d <= tol, "%s: parameters differ by %.3g" % (mesh, d))
    return rows1, w1


LN = [0.0, math.log(2), math.log(4), math.log(8)]


def processes(exe):
    """The processes that run this file."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink("/proc/%s/exe" % pid) == exe:
                found.append(int(pid))
        except OSError:
            pass                                # gone, or another user's
    return found


def unigram(b, rows, mesh, micro, loss, grad):
    flat = [x for r in rows for x in r]
    write_tensors(b.path("u.safetensors"), {"targets": ("I32", [len(rows), len(rows[0])], flat)})
    write_tensors(b.path("u_init.safetensors"), {"b": ("F32", [4], LN)})
    program = b.compile("u", mesh, micro=micro,
                        sets=["batch=%d" % len(rows), "seq=%d" % len(rows[0])])
    log, w, _ = b.run(program)
    near(log[0]["loss"], loss, what="%s M=%s loss" % (mesh, micro))
    near_list([x - y for x, y in zip(LN, w["b"])], grad, what="gradient")


def frequencies(rows):
    labels = [x for r in rows for x in r if x >= 0]
    n = len(labels)
    loss = sum([math.log(15 / 2 ** x) for x in labels]) / n
    return loss, [2 ** k / 15 - labels.count(k) / n for k in range(4)]


# ---- the cases ----------------------------------------------------------------------

def a01(b):
    """Denominators of microbatches with 1 and 3 labels."""
    rows = [[0, -1, -1, -1], [3, 3, 3, -1]]
    want = [-0.183333, 0.133333, 0.266667, -0.216667]
    for mesh, micro in (("1", 2), ("1", 1), ("dp2", 1)):
        unigram(b, rows, mesh, micro, 1.148469, want)


def a03(b):
    """Four microbatches with 0, 1, 2 and 5 labels; none at all."""
    rows = [[-1] * 5, [0] + [-1] * 4, [3, 1] + [-1] * 3, [2, 3, 3, 0, 1]]
    loss, grad = frequencies(rows)
    for mesh, micro in (("1", 4), ("1", 2), ("dp2", 2), ("1", 1)):
        unigram(b, rows, mesh, micro, loss, grad)
    write_tensors(b.path("u.safetensors"), {"targets": ("I32", [4, 5], [-1] * 20)})
    log, w, text = b.run(b.compile("u", "1", micro=4, sets=["batch=4", "seq=5"]))
    near_list(w["b"], LN, what="parameters after a step without labels")
    check("unmasked" in text, "a step without labels is not reported:\n" + text)


def a04(b):
    """Ranks with 5 labels and 1 label."""
    rows = [[3] * 5, [0] + [-1] * 4]
    loss, grad = frequencies(rows)
    near(loss, 0.975182, what="closed form")
    for mesh in ("dp2", "1"):
        unigram(b, rows, mesh, 1, loss, grad)


def a06(b):
    """Pipelines: gradient norms, not only losses."""
    same_run(b, "g", ["pp2", "pp4"])


def a07(b):
    """Gradient norm independent of the number of microbatches."""
    rows1, w1, _ = b.run(b.compile("g", "1"), "--steps", "3")
    for schedule in ("1f1b", "gpipe"):
        for m in (1, 2, 4, 8):
            rows, w, _ = b.run(b.compile("g", "pp2", micro=m, schedule=schedule), "--steps", "3",
                               mpi=(schedule == "1f1b") == (m > 2))
            for r, r1 in zip(rows, rows1):
                near(r["grad_norm"], r1["grad_norm"], 1e-5, "M=%d grad_norm" % m)
            d = distance(w, w1)
            check(d <= 1e-5, "M=%d: parameters differ by %.3g" % (m, d))


def tied(b, mesh, tokens, targets, want, micro=1):
    n = len(tokens)
    write_tensors(b.path("t.safetensors"), {"tokens": ("I32", [n, 1], tokens),
                                            "targets": ("I32", [n, 1], targets)})
    write_tensors(b.path("t_init.safetensors"), {"e": ("F32", [3, 1], [1.0, 0.0, 0.0])})
    log, w, _ = b.run(b.compile("t", mesh, micro=micro, sets=["batch=%d" % n]))
    near_list(w["e"], [x - g for x, g in zip([1, 0, 0], want)], what=mesh + " table")
    return log


def a11(b):
    """Tied table over stages, data ranks and a sharded optimizer."""
    MESHES["a11"] = ("pp = 2, dp = 2", False, 1, "zero 1 over dp", [])
    for mesh in ("1", "a11"):
        log = tied(b, mesh, [0, 0], [1, 2], [1.152234, -0.288058, -0.288058])


def a12(b):
    """Tied table on one and two stages; a third use in the middle."""
    for mesh in ("1", "pp2"):
        log = tied(b, mesh, [0], [1], [1.152234, -0.788058, 0.211942])
        near(log[0]["loss"], 1.551445, what="loss")
        near(log[0]["grad_norm"], 1.411948, what="norm")
    same_run(b, "g3", ["pp4", "2x2x2"], ["--steps", "20"], tol=2e-5)


def a15(b):
    """Replicated parameters count once in the norm."""
    same_run(b, "g", ["dp2", "tp2", "sp2", "dp2tp2", "2x2x2", "zero1", "2x2x2zero1"])


def a17(b):
    """One norm for the clip over all stages."""
    same_run(b, "g", ["pp4"], ["--clip", "0.1", "--steps", "10"])


def a20(b):
    """Dropout masks depend on the global element alone."""
    sweep = ["dp2", "tp2", "sp2", "pp2", "dp2tp2", "tp2pp2", "2x2x2", "dp3"]
    rows1, _ = same_run(b, "gdrop", sweep, ["--steps", "3"], loss_tol=1e-6)
    other, _, _ = b.run(b.compile("gdrop", "1"), "--steps", "3", "--seed", "2")
    check(abs(other[0]["loss"] - rows1[0]["loss"]) > 1e-4, "the seed changes nothing")


def a21(b):
    """Initial values do not depend on the mesh: bit for bit."""
    _, w1, _ = b.run(b.compile("g", "1"), "--steps", "0")
    for mesh in ("tp2", "tp4", "pp2", "pp3", "dp2tp2", "zero1"):
        _, w, _ = b.run(b.compile("g", mesh), "--steps", "0")
        check(w == w1, mesh + ": initial weights differ")


def a23(b):
    """What is computed again drops the same elements: bit for bit."""
    for mesh, axes, micro, schedules in (("one", "", 1, ["1f1b"]), ("tp", "tp = 2", 2, ["1f1b"]),
                                         ("pp", "pp = 2", 4, ["1f1b", "gpipe"]),
                                         ("pptp", "pp = 2, tp = 2", 4, ["1f1b"])):
        runs = []
        for i, how in enumerate(("", "recompute attention", "recompute block")):
            name = "a23%s%d" % (mesh, i)
            MESHES[name] = (axes, "tp" in mesh, micro, how, [])
            runs += [b.run(b.compile("gdrop", name, schedule=s), "--steps", "3", mpi=i == 2) for s in schedules]
        for rows, w, _ in runs[1:]:
            check([(r["loss"], r["grad_norm"]) for r in rows] ==
                  [(r["loss"], r["grad_norm"]) for r in runs[0][0]], mesh + ": other losses")
            check(w == runs[0][1], mesh + ": other weights")


def a31(b):
    """Decay is for matrices, on every mesh: one step with it and without."""
    init = b.run(b.compile("g", "1"), "--steps", "0")[1]
    for mesh in ("1", "dp2", "tp2", "zero1", "zero2", "zero3", "dp2tp2zero1", "dp2tp2zero2", "dp2tp2zero3",
                 "2x2x2zero1", "tp2pp2", "hybrid"):
        # the clip depends on the gradient alone, so it is the same step
        with_it, without = [b.run(b.compile(f, mesh), "--steps", "1", mpi=f == "gdecay")[1]
                            for f in ("gdecay", "gnodecay")]
        for name, w in init.items():
            vector = name.split(".")[-1] in ("g", "b")
            for x, y, x0 in zip(with_it[name], without[name], w):
                near(x - y, 0.0 if vector else -0.01 * x0, 0 if vector else 2e-7, "%s %s" % (mesh, name))
        text = subprocess.run([b.ndc, b.source("gdecay"), "--plan", b.compile("gdecay", mesh)[0] + ".plan",
                               "--emit=plan"], capture_output=True, text=True).stdout
        check("with weight decay\n" in text and "without weight decay\n" in text, "the plan has no two lists")


def a36(b):
    """The schedule counts updates."""
    columns = []
    for mesh, micro in (("1", 1), ("dp2", 1), ("1", 4)):
        rows, _, _ = b.run(b.compile("glr", mesh, micro=micro))
        columns.append([r["lr"] for r in rows])
    check(columns[0] == columns[1] == columns[2], "the lr columns differ")
    near(columns[0][4], 0.5e-1, what="lr(5)")
    near(columns[0][9], 1e-1, what="lr(10)")
    near(columns[0][99], 1e-3, what="lr(100)")
    # every kind, against the table's own words: steps 12, peak 0.3, warm-up 3
    kinds = {
        "0.3": lambda t: 0.3,
        "constant(0.3)": lambda t: 0.3,
        "constant(0.3, warmup = 3)": lambda t: 0.3 * min(t / 3, 1),
        "linear(0.3, warmup = 3)": lambda t: 0.1 * t if t <= 3 else 0.3 * (12 - t) / 9,
        "linear(0.3, min = 0.06)": lambda t: 0.06 + 0.24 * (12 - t) / 12,
        "cosine(0.3, warmup = 3, min = 0.06)":
            lambda t: 0.1 * t if t <= 3 else 0.18 + 0.12 * math.cos(math.pi * (t - 3) / 9),
        "wsd(0.3, warmup = 3, decay = 4)": lambda t: 0.1 * t if t <= 3 else 0.3 * min(1, (12 - t) / 4),
        "wsd(0.3, min = 0.1, decay = 0.5)": lambda t: 0.3 if t <= 6 else 0.1 + 0.2 * (12 - t) / 6,
        "wsd(0.3)": lambda t: 0.3 if t <= 10 else 0.3 * (12 - t) / 2,
    }
    write_tensors(b.path("u.safetensors"), {"targets": ("I32", [2, 4], [0, 1, 2, 3] * 2)})
    write_tensors(b.path("u_init.safetensors"), {"b": ("F32", [4], LN)})
    for i, (text, f) in enumerate(kinds.items()):
        DERIVED["u%d" % i] = ("u", "sgd(lr = 1.0)\n  steps     = 1", "sgd(lr = %s)\n  steps = 12" % text)
        rows, _, _ = b.run(b.compile("u%d" % i, "1"))
        near_list([r["lr"] for r in rows], [f(t) for t in range(1, 13)], 1e-7, text)


def micro_losses(text):
    """What --micro-losses prints: (step, microbatch, loss), in the order of the lines."""
    return re.findall(r"^step (\d+) microbatch (\d+)  loss (\S+)$", text, re.M)


def a37(b):
    """Each microbatch meets its own labels: one loss per microbatch, in order, those of one rank."""
    DERIVED["garrays"] = ("g", 'text("g.txt")', 'arrays("a37.safetensors")')
    rng = random.Random(5)
    write_tensors(b.path("a37.safetensors"), {
        "tokens": ("I32", [8, 16], [rng.randrange(61) for _ in range(8 * 16)]),
        "targets": ("I32", [8, 16], [(7 * row + pos % 3) % 61 for row in range(8) for pos in range(16)])})
    for pp in (2, 3, 4):
        MESHES["a37pp%d" % pp] = ("pp = %d" % pp, False, 1, "", [])
    for m in (3, 5, 8):
        options = ("--steps", "1", "--micro-losses")
        rows, _, text = b.run(b.compile("garrays", "1", micro=m), *options)
        want = micro_losses(text)
        check([x[:2] for x in want] == [("1", str(i)) for i in range(m)], "not one line each:\n" + text)
        check(len(set(x[2] for x in want)) == m, "the labels are not distinct")
        near(sum(float(x[2]) for x in want), rows[0]["loss"], 1e-6, "M=%d: sum of the losses" % m)
        plain, _, _ = b.run(b.compile("garrays", "1", micro=m), "--steps", "1")
        check(plain[0]["loss"] == rows[0]["loss"], "the option changes the loss")
        for pp in (2, 3, 4):
            for schedule in ("1f1b", "gpipe"):
                _, _, text = b.run(b.compile("garrays", "a37pp%d" % pp, micro=m, schedule=schedule), *options,
                                   mpi=m == (3, 5, 8)[4 - pp])
                check(micro_losses(text) == want, "PP=%d M=%d %s: %s, want %s"
                      % (pp, m, schedule, micro_losses(text), want))


def b03(b):
    """Layers that do not divide over the stages."""
    MESHES["b03pp2"] = ("pp = 2", False, 2, "", [])
    for layers, mesh in ((11, "pp3"), (5, "pp2")):
        same_run(b, "g", [mesh], ["--steps", "2"], sets=["layers=%d" % layers])
    _, _, text = b.compile("g", "pp4", sets=["layers=3"], expect=1)
    check("stage" in text, "PP > layers is refused without a reason:\n" + text)


def b04(b):
    """Fewer microbatches than stages."""
    rows1, w1, _ = b.run(b.compile("g", "1"), "--steps", "2")
    for schedule in ("1f1b", "gpipe"):
        for m in (1, 2, 3, 4, 5, 7):
            rows, w, _ = b.run(b.compile("g", "pp4", micro=m, schedule=schedule), "--steps", "2",
                               mpi=(schedule == "1f1b") == m % 2)
            near(rows[1]["loss"], rows1[1]["loss"], 1e-5, "%s M=%d loss" % (schedule, m))


def report(b, fixture, exe, *sets):
    """The devices of --emit=plan: for each, bytes by what they are for."""
    cmd = [b.ndc, b.source(fixture), "--plan", exe + ".plan", "--emit=plan"]
    for s in sets:
        cmd += ["--set", s]
    text = subprocess.run(cmd, capture_output=True, text=True).stdout
    rows = [[line.split() for line in part.split("\n")] for part in re.split(r"\n(?:stage|device) \d+: ", text)[1:]]
    return [{w[0]: int(w[-2].replace(",", "")) for w in lines if w and w[-1] == "bytes"} for lines in rows], text


def arenas(text):
    """What a run says that it allocates, per stage."""
    return [int(n) for n in re.findall(r"arena .* per rank \((\d+) bytes\)", text)]


def c03(b):
    """1f1b holds no more microbatches than stages; gpipe holds all; gradients once; and so they run."""
    MESHES["c03"] = ("pp = 4", False, 1, "", [])
    for schedule, held in (("1f1b", lambda m, s: min(m, 4 - s)), ("gpipe", lambda m, s: m)):
        said = {}
        for m in (1, 2, 4, 8, 16, 32):
            sets = ["batch=%d" % (2 * m)]
            program = b.compile("g", "c03", schedule=schedule, micro=m, sets=sets)
            said[m], _ = report(b, "g", program[0], *sets)
            check(len(said[m]) == 4, "not four stages")
            for s, (one, now) in enumerate(zip(said[1], said[m])):
                where = "%s, M = %d, stage %d: " % (schedule, m, s)
                check(now["saved"] == held(m, s) * one["saved"] > 0, where + "saves %d bytes, one microbatch %d"
                      % (now["saved"], one["saved"]))
                check(now["gradients"] == one["gradients"] > 0, where + "gradients grow")
                if schedule == "1f1b" and m > 4:
                    was = said[4][s]
                    check(now["peak"] - now["inputs"] == was["peak"] - was["inputs"], where + "the peak grows")
            if m in (4, 16):
                _, _, text = b.run(program, "--steps", "1")
                check(arenas(text) == [x["peak"] for x in said[m]], "%s, M = %d: a run allocates %s, the plan says %s"
                      % (schedule, m, arenas(text), [x["peak"] for x in said[m]]))


def emitted(path):
    """Of a program's C text: rows of its schedule, fixed bytes by device, and by stage (device, bytes of a slot
    by span, forward runs again)."""
    text = open(path).read()
    rows = text[text.index("0F0"):]
    rows = re.findall(r'"([^"]*)"', '"' + rows[:rows.index("};")])
    joined, devices = " ".join(rows), [int(x) for x in re.findall(r"\.fixed_bytes = (\d+)", text)]
    stages = [(int(d), [int(x) for x in slots.split(", ")], "again = true" in rest) for d, slots, rest in
              re.findall(r"\.device = (\d+),\s+\.slot_bytes = \{([^}]*)\},(.*?)\.run = ", text, re.S)]
    return joined, devices, stages


def lives(actions, stage, kinds):
    """When the microbatches of a stage are between the first and the last of their actions of these kinds."""
    life = {}
    for at, (s, op, mb) in enumerate(re.findall(r"(\d+)(F|B|I|W|RECV_F|SEND_F|SEND_B|RECV_B)(\d+)", actions)):
        if int(s) == stage and op in kinds:
            life[mb] = (life.get(mb, (at, at))[0], at)
    return list(life.values())


def peak(lives_and_sizes):
    """The most bytes at any time."""
    return max(sum(size for (a, z), size in lives_and_sizes if a <= at <= z) for (at, _), _ in lives_and_sizes)


def held(b):
    """Activation memory is in flight times what a microbatch keeps, counted here from the emitted schedule."""
    # messages bring what F reads, and take what I made
    until_i = ("RECV_F", "F", "I", "B", "SEND_B")
    spans = (until_i, until_i + ("W",), ("I", "B", "W", "SEND_B"))
    MESHES["held"] = ("pp = 2", False, 1, "", [])
    for schedule in ("gpipe", "1f1b", "interleaved(2)", "bfs(2)", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min"):
        flat = []
        for m in (4, 8, 16):
            sets = ["layers=5", "batch=%d" % (2 * m)]
            exe, _, _ = program = b.compile("g", "held", schedule=schedule, micro=m, sets=sets)
            actions, fixed, stages = emitted(exe + ".c")
            check(len(fixed) == 2 and len(stages) in (2, 4), "not the devices: %s %s" % (fixed, stages))
            alive, apart = [[], []], [0, 0]
            for s, (device, slot, again) in enumerate(stages):
                check(not again, "nobody asked for that")
                for size, kinds in zip(slot, spans):
                    mine = [(x, size) for x in lives(actions, s, kinds)]
                    alive[device] += mine
                    apart[device] += peak(mine)
            said, _ = report(b, "g", exe, *sets)
            _, _, text = b.run(program, "--steps", "1")
            where = "%s M=%d: " % (schedule, m)
            check(arenas(text) == [x["peak"] for x in said], where + "a run allocates %s, the plan says %s"
                  % (arenas(text), [x["peak"] for x in said]))
            kept = [x - y for x, y in zip(arenas(text), fixed)]
            for k, x, most in zip(kept, alive, apart):
                # stages of one device may use the same memory at different times, and do where they can
                check(k == most if len(stages) == 2 else peak(x) <= k <= most, where + "%d bytes are kept, at once %d, "
                      "by stages of their own %d" % (k, peak(x), most))
            flat.append(kept)
        grows = schedule in ("gpipe", "bfs(2)")
        check((flat[2] > flat[1]) == grows and (grows or flat[1] == flat[2]), "%s: %s" % (schedule, flat))


def c04(b):
    """Uneven stages: each has its own bytes, and the fullest one is the maximum."""
    MESHES["c04"] = ("pp = 4", False, 4, "", [])
    sets = ["layers=9"]
    program = b.compile("g", "c04", stages="[1, 2, 3, 3]", sets=sets)
    said, text = report(b, "g", program[0], *sets)
    _, _, out = b.run(program, "--steps", "1")
    peaks = [x["peak"] for x in said]
    check(arenas(out) == peaks, "a run allocates %s, the plan says %s" % (arenas(out), peaks))
    check(said[0]["weights"] > said[1]["weights"] and said[3]["weights"] > said[2]["weights"],
          "the embedding or the head is not counted: %s" % said)
    fullest = max(range(4), key=lambda s: peaks[s])
    line = [x for x in text.split("\n") if x.startswith("  memory  ")]
    check(len(line) == 1 and line[0].endswith("stage %d" % fullest) and "{:,} bytes".format(peaks[fullest]) in line[0],
          "the maximum is not reported: %s of %s" % (line, peaks))


def d01(b):
    """A checkpoint of one mesh goes on with any other, moments included."""
    DERIVED["gadamw"] = ("g", "sgd(lr = 0.1)", "adamw(lr = 0.003, weight_decay = 0.1)\n"
                         '  checkpoint = every(5)\n  freeze = ["*.k.b"]')
    folders = iter(range(100))

    def train(mesh, *options):
        folder = b.path("d01.%d" % next(folders))
        shutil.rmtree(folder, ignore_errors=True)
        return b.run(b.compile("gadamw", mesh), "--checkpoints", folder, *options)[:2] + (folder,)

    rows1, w1, _ = train("1", "--steps", "10")
    _, _, saved = train("zero1", "--steps", "5")
    for mesh in ("1", "dp2", "dp3", "zero1", "tp2", "pp2", "dp2tp2"):
        rows, w, _ = train(mesh, "--steps", "10", "--resume", saved)
        near_list([r["loss"] for r in rows], [r["loss"] for r in rows1[5:]], 1e-5, mesh + " loss")
        d = distance(w, w1)
        check(d <= 1e-4, "%s: parameters differ by %.3g" % (mesh, d))


def b12(b):
    """A rank that is killed ends them all."""
    exe, ranks, _ = b.compile("g", "dp2tp2")
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    for whom in ("rank", "launcher"):
        job = subprocess.Popen(["mpirun", "--oversubscribe", "-n", str(ranks), exe, "--steps", "100000000"],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=b.work, env=env)
        while "step 5/" not in job.stdout.readline():
            check(job.poll() is None, "it ended by itself")
        if whom == "rank":
            os.kill(processes(exe)[2], signal.SIGKILL)
        else:
            job.terminate()
        job.communicate(timeout=30)
        check(job.returncode != 0, whom + " killed: exit status 0")
        check(not processes(exe), whom + " killed: ranks go on")


def f01(b):
    """Sizes that do not divide: told at the axis, and refused with --require-even."""
    for mesh, axis, size, over, two in (("dp4", "batch", 5, "dp", "4 and 8"), ("tp4", "ffn", 30, "tp", "28 and 32")):
        sets = ["%s=%d" % (axis, size)]
        told = ("axis `%s` of size %d does not divide over mesh axis `%s` of size 4: ranks hold %d or %d; "
                "nearest sizes that divide: %s" % (axis, size, over, -(-size // 4), size // 4, two))
        line = 1 + [x.split()[:2] for x in open(b.source("g"))].index(["axis", axis])
        for word, options in (("perf", ()), ("error", ("--require-even",))):
            _, _, text = b.compile("g", mesh, sets=sets, options=options, expect=int(word == "error"))
            check("g.nd:%d:6: %s: %s\n" % (line, word, told) in text, "not told so:\n" + text)
        same_run(b, "g", [mesh], sets=sets)
    _, _, text = b.compile("g", "dp2tp2", options=("--require-even",), sets=["seq=6", "vocab=62"])
    check(text == "", text)


def f13(b):
    """The printed command runs with more ranks than cores."""
    exe, ranks, _ = b.compile("g", "2x2x2")
    text = subprocess.run([b.ndc, os.path.join(HERE, "g.nd"), "--plan", exe + ".plan", "--emit=plan"],
                          capture_output=True, text=True).stdout
    lines = [x.strip() for x in text.split("\n") if "mpirun" in x]
    check(lines, "the plan prints no mpirun command:\n" + text)
    command = lines[0][lines[0].index("mpirun"):].replace("./train", exe) + " --steps 1"
    r = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=b.work, timeout=120)
    check(r.returncode == 0, "%s\n%s%s" % (command, r.stdout, r.stderr))


def moe(b):
    """Experts cut over ranks: one of four per token, two of four."""
    meshes = ["dp2", "ep2", "ep3", "epdp", "dp2ep2", "tp2ep2", "pp2ep2", "pp4", "eprows3", "dp2eprows2",
              "tp2eprows2", "pp2eprows2"]
    same_run(b, "gmoe", some(meshes))
    same_run(b, "gmoe1", some(meshes[::-1]))


def muon(b):
    """Whole matrices are orthogonalised, whatever cuts them."""
    same_run(b, "gmuon", ["dp2", "tp2", "tp4", "sp2", "pp2", "pp3", "accum4", "zero1", "dp2tp2", "tp2pp2",
                          "2x2x2zero1"], tol=5e-5)


def metric(b):
    """Means over the evaluation samples, each once, on every mesh."""
    # 13 samples to evaluate in batches of 8: the last one wraps
    rng = random.Random(3)
    with open(b.path("eval.txt"), "wb") as f:
        f.write(bytes(rng.randrange(61) for _ in range(13 * 16 + 1)))
    want = None
    for mesh in ("1", "dp2", "dp3", "tp2", "sp2", "accum4", "pp2", "2x2x2", "2x2x2zero1"):
        rows, _, text = b.run(b.compile("gmetric2", mesh))
        got = [r for r in rows if "eval" in r]
        want = want or got
        check([r["eval"] for r in got] == [2, 4, 5], mesh + ": evaluations after other steps")
        for r, r1 in zip(got, want):
            near(r["hit"] * 13 * 16, round(r["hit"] * 13 * 16), 1e-6, mesh + ": not of 13 samples")
            for k in ("loss", "hit", "sure"):
                near(r[k], r1[k], 1e-5, "%s %s" % (mesh, k))
        check("hit=%.6g" % got[-1]["hit"] in text, mesh + ": no metric on the console")


def frozen(b):
    """Frozen parameters stay, bit for bit, and are not counted in the norm."""
    init = b.run(b.compile("gfrozen", "1"), "--steps", "0")[1]
    rows1, w1 = same_run(b, "gfrozen", ["dp2", "tp2", "pp2", "2x2x2zero1"])
    for name in init:
        stays = name == "wte" or ".mlp." in name or name.endswith(".ln1.g")
        if not name.endswith(".k.b"):          # its gradient is 0 but for rounding
            check((w1[name] == init[name]) == stays, name + (" moved" if stays else " did not move"))
    # the norm is that of the others' gradients: one plain step at rate 1 shows them
    DERIVED["gfrozen1"] = ("g", "sgd(lr = 0.1)", "sgd(lr = 1)\n  freeze = [\"wte\", \"layers.mlp.*\", \"*.ln1.g\"]")
    rows, w, _ = b.run(b.compile("gfrozen1", "1"), "--steps", "1", "--clip", "0")
    total = sum((x - y) ** 2 for k in w for x, y in zip(w[k], init[k]))
    near(rows[0]["grad_norm"], math.sqrt(total), 1e-5, "norm")


def resume(b):
    """A run that is resumed goes on bit for bit; the last checkpoints are kept."""
    plans = (('muon(lr = cosine(0.02, warmup = 2), adamw = ["wte", "wpe"])',
              ("1", "dp2", "tp2", "pp2", "zero1", "2x2x2zero1")),
             ("adamw(lr = 0.01)", ("1", "dp2", "tp2", "pp2", "2x2x2zero1")),
             ("sgd(lr = 0.1, momentum = 0.9)", ("zero1", "pp3")),
             ("lion(lr = 0.001)", ("tp2",)))
    column = lambda rows: [(r["step"], r["loss"], r["grad_norm"], r["lr"]) for r in rows]  # noqa: E731
    for i, (rule, meshes) in enumerate(plans):
        name = "gresume%d" % i
        DERIVED[name] = ("gdrop", "sgd(lr = 0.1)", rule + "\n  checkpoint = every(2)")
        for mesh in meshes if b.launch == "local" else some(meshes) or meshes:
            program = b.compile(name, mesh)
            folder = program[0] + ".steps"
            shutil.rmtree(folder, ignore_errors=True)
            options = ["--steps", "7", "--checkpoints", folder]
            rows, w, _ = b.run(program, *options)
            check(sorted(os.listdir(folder)) == ["step-%d.safetensors" % k for k in (2, 4, 6, 7)], "files")
            if i == 0:
                _, _, text = b.run(program, *options, expect=1)
                check("holds step 7 of an earlier run" in text, "another run's folder:\n" + text)
            # as if it had been killed while it wrote step 6
            os.rename(os.path.join(folder, "step-6.safetensors"), os.path.join(folder, "step-6.safetensors.tmp"))
            os.remove(os.path.join(folder, "step-7.safetensors"))
            again, w2, _ = b.run(program, *options, "--resume", folder)
            check(column(again) == column(rows)[4:], "%s %s: other losses" % (rule, mesh))
            check(w == w2, "%s %s: other weights" % (rule, mesh))
    # a checkpoint of one mesh goes on with another
    for k in (6, 7):
        os.remove(os.path.join(folder, "step-%d.safetensors" % k))
    again, w2, _ = b.run(b.compile(name, "pp2"), "--steps", "7", "--checkpoints", folder, "--resume", folder)
    near_list([r["loss"] for r in again], [r["loss"] for r in rows[4:]], 1e-5, "loss on another mesh")
    DERIVED["gkeep"] = ("g", "seed      = 1", 'seed = 1\n  checkpoint = every(1, keep = 2, path = "kept")')
    shutil.rmtree(b.path("kept"), ignore_errors=True)
    program = b.compile("gkeep", "dp2tp2")
    b.run(program)
    check(sorted(os.listdir(b.path("kept"))) == ["step-4.safetensors", "step-5.safetensors"], "the last two are kept")
    _, _, text = b.run(program, "--lr", "1e39", "--resume", "kept", "--steps", "7", expect=1)
    check("not finite" in text, "weights that are not finite:\n" + text)
    check(len(os.listdir(b.path("kept"))) == 2, "a checkpoint that is not finite is written")
    _, _, text = b.run(program, "--resume", "nowhere", expect=1)
    check('cannot read the folder "nowhere"' in text, text)


def needs(refused):
    """Of each device, from the message of a refusal: the least bytes, and those without recompute."""
    return [(int(x), int(y)) for x, y in re.findall(r"needs at least (\d+) bytes, and (\d+) if it recomputes", refused)]


# what auto(bytes) is tried on: mesh, sequence parallel, schedules, other lines of the plan
REMAT = (("", False, ["1f1b"], ""), ("pp = 4", False, ["1f1b", "gpipe"], ""), ("pp = 2, tp = 2", True, ["gpipe"], ""),
         ("pp = 3", False, ["1f1b"], ""), ("pp = 2, dp = 2", False, ["1f1b"], "zero 1 over dp"),
         ("pp = 2, dp = 2", False, ["gpipe"], "zero 2 over dp"), ("pp = 2, dp = 2", False, ["gpipe"], "zero 3 over dp"),
         ("pp = 2, dp = 2, tp = 2", True, ["1f1b"], "zero 3 over dp"))


def remat(b):
    """recompute auto(bytes) fits, and the results are those without, bit for bit; what cannot fit is refused."""
    for axes, sp, schedules, lines in some(REMAT):
        for schedule in schedules:
            def program(how, expect=0):
                MESHES["remat"] = (axes, sp, 4, (lines + "\n  " + how).strip(), [])
                return b.compile("gdrop", "remat", schedule=schedule, sets=["layers=5"], expect=expect)
            where = "%s %s %s" % (axes, schedule, lines)
            rows, w, text = b.run(program("recompute none"), "--steps", "3", mpi=False)
            need = needs(program("recompute auto(1)", expect=1)[2])
            check([y for _, y in need] == arenas(text), where + ": not the bytes of a run: %s" % need)
            least, most = max(x for x, _ in need), max(y for _, y in need)
            check(least < most, where + ": nothing is gained")
            _, _, refused = program("recompute auto(%d)" % (least - 1), expect=1)
            check("no way to recompute fits" in refused, refused)
            for room in (least, (least + most) // 2, most - 1, most):
                exe = program("recompute auto(%d)" % room)
                again, w2, text = b.run(exe, "--steps", "3", mpi=room == least)
                check([(r["loss"], r["grad_norm"]) for r in again] == [(r["loss"], r["grad_norm"]) for r in rows],
                      "%s auto(%d): other losses" % (where, room))
                check(w2 == w, "%s auto(%d): other weights" % (where, room))
                said, plan = report(b, "gdrop", exe[0], "layers=5")
                check(max(arenas(text)) <= room, "%s auto(%d): allocates %s" % (where, room, arenas(text)))
                check([x["peak"] for x in said] == arenas(text), where + ": the plan has other bytes")
                check(room < most or ": none\n" in plan and "again" not in plan, where + ": recomputes for nothing")
                check(room > least or schedule == "1f1b" or "forward again" in plan, where + ": no stage runs again")


COMPOSE = (("pp = 2", False, ""), ("pp = 2, tp = 2", True, ""), ("pp = 2, dp = 2", False, "zero 1 over dp"),
           ("pp = 2, dp = 2", False, "zero 2 over dp"), ("pp = 2, dp = 2", False, "zero 3 over dp"),
           ("pp = 2, dp = 2, tp = 2", True, "zero 3 over dp"))
# whether gradients add up in ascending order
SCHEDULES = (("1f1b", True), ("gpipe", True), ("interleaved(2)", True), ("bfs(2)", False), ("zb_h1", True),
             ("zb_h2", True), ("zb_v", True), ("v_half", True), ("v_min", True), ("dualpipe_v", True))


def compose(b):
    """Schedules, recompute, ZeRO and sharding together: recompute changes no bit, schedules not the result."""
    for i, (axes, sp, lines) in enumerate(COMPOSE):
        want = None
        for k, (schedule, ascending) in enumerate(SCHEDULES):
            if k > 0 and not LONG and k % 5 != i % 5:
                continue
            def program(how, expect=0):
                MESHES["compose"] = (axes, sp, 6, (lines + "\n  " + how).strip(), [])
                return b.compile("gdrop", "compose", schedule=schedule, sets=["layers=5", "batch=16"], expect=expect)
            where = "%s %s %s: " % (axes, schedule, lines)
            least = max(x for x, _ in needs(program("recompute auto(1)", expect=1)[2]))
            base = None
            for how in ("recompute none", "recompute block", "recompute auto(%d)" % least):
                if how == "recompute block" and k > 0 and not LONG:
                    continue
                rows, w, text = b.run(program(how), "--steps", "3", mpi=how.startswith("recompute auto"))
                base = base or (rows, w)
                check([(r["loss"], r["grad_norm"]) for r in rows] == [(r["loss"], r["grad_norm"]) for r in base[0]]
                      and w == base[1], where + how + " changes bits")
            check(max(arenas(text)) <= least, where + "allocates %s, %d were asked for" % (arenas(text), least))
            want = want or base
            check(base[0][0]["loss"] == want[0][0]["loss"], where + "another first loss")
            for r, r1 in zip(base[0], want[0]):
                near(r["loss"], r1["loss"], 2e-6, where + "loss")
                near(r["grad_norm"], r1["grad_norm"], 2e-6, where + "grad_norm")
            untied = [n for n in want[1] if n != "wte"]
            if ascending:                       # one step, no clip: the gradients themselves
                one = b.run(program("recompute none"), "--steps", "1", "--clip", "0", mpi=False)[1]
                if schedule == "1f1b":
                    first = one
                check(all(one[n] == first[n] for n in untied), where + "other gradients")
            d = distance(base[1], want[1])
            check(d <= 1e-5, where + "parameters differ by %.3g" % d)


LATE = [["0F0", "0F1", "0F2", "0I0", "0F3", "0W0", "0I1", "0W1", "0I2", "0W2", "0I3", "0W3"]] + \
    [["%d%s%d" % (s, op, mb) for mb in range(4) for op in "FIW"] for s in (1, 2, 3)]


def late(b):
    """A forward pass that will run again leaves alone what a weight gradient still waits for."""
    with open(b.path("late.csv"), "w") as f:
        f.write("".join(",".join(row) + "\n" for row in LATE))

    def program(how, expect=0):
        MESHES["late"] = ("pp = 4", False, 4, how, [])
        # a light head, and a table before the first layer, so that the first stage needs most
        DERIVED["glate"] = ("gdrop", 'text("g.txt")', "synthetic", "axis vocab = 61", "axis vocab = 3",
                            "axis seq = 16", "axis seq = 16\naxis many = 500",
                            "  x = dropout(", "  table = param [many -> d] ~ normal(0.2)\n"
                            "  x = dropout(mean[many](table) + ")
        return b.compile("glate", "late", schedule="zb_h1", expect=expect)
    need = needs(program("recompute auto(1)", expect=1)[2])
    again = program("recompute auto(%d)" % (sum(need[0]) // 2))
    _, _, stages = emitted(again[0] + ".c")
    check(stages[0][2] and stages[0][1][2] > 0, "nothing waits for W on a stage that runs again: %s" % stages)
    options = ("--steps", "3", "--schedule", b.path("late.csv"))
    want, w, _ = b.run(program("recompute none"), *options)
    rows, w2, _ = b.run(again, *options)
    check(w2 == w and [r["loss"] for r in rows] == [r["loss"] for r in want], "other bits")


def generated(text):
    """What --generate prints: what follows the lines of the steps."""
    return re.split(r"(?:tok/s  eta \S+|held-out batch\w*\))\n", text)[-1].split("\n" + "g: ")[0][:40]


def inference(b):
    """Pipelines evaluate and generate as one rank does, and train on as if they had not."""
    rng = random.Random(3)
    with open(b.path("eval.txt"), "wb") as f:
        f.write(bytes(rng.randrange(61) for _ in range(13 * 16 + 1)))
    DERIVED["gquiet"] = ("gmetric2", "  metric = [hit, sure]\n  eval = every(2)", "", ', eval = "eval.txt"', "")
    options = ("--steps", "4", "--generate", "0123456", "--tokens", "33")
    want, _, text = b.run(b.compile("gmetric2", "1"), *options)
    words = generated(text)
    check(words.startswith("0123456") and len(words) == 40, "no text: %r" % words)
    MESHES["inferauto"] = ("pp = 3", False, 4, "recompute auto(300000)", [])
    for mesh, schedule, m in (("pp2", "1f1b", 3), ("pp3", "1f1b", 8), ("pp3", "gpipe", 2), ("pp4", "gpipe", 4),
                              ("2x2x2", "zb_h1", 4), ("dp2pp2zero3", "interleaved(2)", 4), ("pp2", "zb_v", 4),
                              ("inferauto", "gpipe", 4)):
        where = "%s %s M=%d: " % (mesh, schedule, m)
        rows, w, text = b.run(b.compile("gmetric2", mesh, schedule=schedule, micro=m), *options)
        check(len(rows) == len(want), where + "other lines")
        for r, r1 in zip(rows, want):
            for k in set(r1) & {"loss", "hit", "sure", "grad_norm"}:
                near(r[k], r1[k], 1e-5, where + k)
        check(generated(text) == words, where + "%r, want %r" % (generated(text), words))
        _, quiet, _ = b.run(b.compile("gquiet", mesh, schedule=schedule, micro=m), "--steps", "4", mpi=False)
        check(quiet == w, where + "evaluation changes the weights")


def sweep(b):
    """Parameters after 5 SGD steps on every mesh; 1e-6 at step 0."""
    same_run(b, "g", ["dp2", "tp2", "sp2", "pp2", "pp3", "pp4", "dp2tp2", "tp2pp2", "dp2pp2",
                      "2x2x2", "dp3", "accum4", "zero1", "2x2x2zero1"])
    MESHES["tp3"] = ("tp = 3", True, 1, "", [])
    same_run(b, "g", ["tp3"], sets=["kvheads=3"])


ZERO = ("zero1", "zero2", "zero3", "zero3dp3", "dp2tp2zero1", "dp2tp2zero2", "dp2tp2zero3", "dp2pp2zero1",
        "dp2pp2zero2", "dp2pp2zero3", "2x2x2zero3", "fsdp", "hybrid", "hybrid1")


def zero(b):
    """Parameters, gradients and state in pieces, SGD and an active clip: one rank's result."""
    rows, _ = same_run(b, "g", some(ZERO), ["--check-replicas"])
    check(all(r["grad_norm"] > 1 for r in rows), "the clip is not active")
    same_run(b, "g3", some(["dp2pp2zero2", "dp2pp2zero3"]), ["--steps", "3"], tol=2e-5)
    same_run(b, "gdrop", some(["zero2", "zero3", "dp2pp2zero3"]), ["--steps", "3"])
    same_run(b, "gfrozen", some(["zero2", "zero3", "dp2tp2zero3", "hybrid"]))
    same_run(b, "gmoe", some(["zero3", "dp2ep2zero3", "epdpzero3", "hybrid"]), ["--check-replicas"])
    same_run(b, "gmuon", some(["zero2", "zero3", "dp2tp2zero3", "dp2pp2zero3", "fsdp", "hybrid1"]),
             ["--check-replicas"], tol=5e-5)


def zero_resume(b):
    """A checkpoint of one level of zero goes on with every other one."""
    DERIVED["gz"] = ("gdrop", "sgd(lr = 0.1)", "adamw(lr = 0.003, weight_decay = 0.1)\n"
                     '  checkpoint = every(2)\n  freeze = ["*.k.b"]')

    def train(mesh, folder, *options):
        shutil.rmtree(b.path(folder), ignore_errors=True)
        return b.run(b.compile("gz", mesh), "--checkpoints", b.path(folder), *options)

    rows1, w1, _ = train("1", "gz.full", "--steps", "6")
    for was in ("zero1", "zero2", "dp2tp2zero3", "fsdp"):
        train(was, "gz.saved", "--steps", "4")
        for mesh in ("1", "zero1", "zero2", "zero3", "dp2pp2zero3", "hybrid"):
            rows, w, _ = train(mesh, "gz.on", "--steps", "6", "--resume", b.path("gz.saved"))
            near_list([r["loss"] for r in rows], [r["loss"] for r in rows1[4:]], 1e-5, "%s -> %s" % (was, mesh))
            d = distance(w, w1)
            check(d <= 1e-4, "%s -> %s: parameters differ by %.3g" % (was, mesh, d))
        again = train(was, "gz.on", "--steps", "6", "--resume", b.path("gz.saved"))
        whole = train(was, "gz.full", "--steps", "6")
        check(again[1] == whole[1], was + ": other weights on the same mesh")


def uneven(b):
    """Uneven and empty pieces: evaluations and checkpoints are those of one rank."""
    DERIVED["guneven"] = ("gmetric2", "sgd(lr = 0.1)", "sgd(lr = 0.1, momentum = 0.9)\n"
                          '  checkpoint = every(2)\n  freeze = ["*.k.b"]')

    def train(mesh, sets, folder, *options):
        shutil.rmtree(folder, ignore_errors=True)
        return b.run(b.compile("guneven", mesh, sets=sets), "--check-replicas", "--checkpoints", folder,
                     *options)[:2]

    def agree(mesh, got, want, samples):
        check(len(got[0]) == len(want[0]), "%s: other lines of the log: %s" % (mesh, got[0]))
        for r, r1 in zip(got[0], want[0]):
            for k in set(r1) & {"loss", "hit", "sure", "grad_norm"}:
                near(r[k], r1[k], 1e-5, "%s %s" % (mesh, k))
            if "hit" in r:
                near(r["hit"] * samples, round(r["hit"] * samples), 1e-6, mesh + ": number of samples")
        d = distance(got[1], want[1])
        check(d <= 2e-5, "%s: parameters differ by %.3g" % (mesh, d))

    for sets, windows, meshes in ((["batch=10", "kvheads=5"], 13, ("zero1", "tp2", "tp4", "2x2x2zero1")),
                                  (["batch=3", "kvheads=1", "ffn=3"], 13, ("dp4", "tp4", "dp2pp2")),
                                  (["batch=2", "seq=3"], 5, ("zero1", "dp3", "tp4"))):
        seq = int(dict(s.split("=") for s in sets).get("seq", 16))
        rng = random.Random(3)
        with open(b.path("eval.txt"), "wb") as f:
            f.write(bytes(rng.randrange(61) for _ in range(windows * seq + 1)))
        one, many, half = (b.path("uneven." + x) for x in ("one", "many", "half"))
        rows, w = train("1", sets, one)
        shutil.rmtree(half, ignore_errors=True)
        os.mkdir(half)
        shutil.copy(os.path.join(one, "step-4.safetensors"), half)
        later = [r for r in rows if r.get("step", r.get("eval")) > 4]
        for mesh in meshes:
            agree(mesh, train(mesh, sets, many), (rows, w), windows * seq)
            d = distance(*(read_tensors(os.path.join(x, "step-4.safetensors")) for x in (many, one)))
            check(d <= 2e-5, "%s: checkpoints differ by %.3g" % (mesh, d))
            agree(mesh, train(mesh, sets, many, "--resume", half), (later, w), windows * seq)


CASES = {f.__name__: f for f in (a01, a03, a04, a06, a07, a11, a12, a15, a17, a20, a21, a23, a31, a36, a37,
                                 b03, b04, b12, c03, c04, compose, d01, f01, f13, frozen, held, inference, late,
                                 metric, moe, muon, remat, resume, sweep,
                                 uneven, zero, zero_resume)}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ndc", required=True)
    p.add_argument("--launch", choices=["local", "mpi", "both"], default="local")
    p.add_argument("--work", default="cases.tmp")
    p.add_argument("case", nargs="*")
    args = p.parse_args()
    if not LONG:                            # what is compared are numbers, not speed
        os.environ.setdefault("NDC_CFLAGS", "-Og")
    bench, failed = Bench(args), 0
    names = [c.lower() for c in args.case] or list(CASES)
    if args.launch == "mpi" and not LONG and names[0] in ("uneven", "zero_resume"):
        return 77                           # skipped: d01 and resume do the like
    for name in names:
        try:
            CASES[name](bench)
            print("ok    %-6s %s" % (name, CASES[name].__doc__), flush=True)
        except (Failure, subprocess.TimeoutExpired) as e:
            failed += 1
            print("FAIL  %-6s %s\n%s" % (name, CASES[name].__doc__, e), flush=True)
    print("%d passed, %d failed" % (len(names) - failed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
