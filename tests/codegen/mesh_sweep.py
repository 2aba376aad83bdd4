"""mesh_sweep.py --ndc NDC [--all] [--no-mpi] [ROW ...] - one model, all meshes.

The models of tests/fixtures train three steps of SGD, with the clip active and
other numbers of masked targets in each row, on every mesh of ROWS, ranks being
threads and being processes. Losses, gradient norms and parameters are within
1e-5 of one rank's, and all copies of a parameter have the same bits
(--check-replicas). Without --all each row is run with one model, in turn, and
every second one as processes.
"""
import argparse
import concurrent.futures
import json
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "cases"))
from cases import Failure, check, distance, read_tensors, write_tensors  # noqa: E402

# What each kind of mesh axis cuts; sp is the sequence over tp. Sizes by --set.
MODELS = {
    "gpt": dict(tp=["heads", "ffn", "vocab"], sp=["seq"], cp=["seq"], sets="batch=7 layers=5",
                inputs=("tokens", "targets")),
    "llama": dict(tp=["kvheads", "ffn", "vocab"], sp=["seq"], cp=["seq"], sets="batch=7 layers=5",
                  inputs=("tokens", "targets")),
    "moe": dict(tp=["group", "ffn", "vocab"], sp=["seq"], cp=["seq"], ep=["expert"],
                sets="batch=7 layers=4", inputs=("tokens", "targets")),
    "encdec": dict(tp=["heads", "ffn", "vocab"], sp=["src", "tgt"], cp=["src", "tgt"], stages=False,
                   sets="batch=7", inputs=("source", "padding", "tokens", "targets")),
    "vit": dict(tp=["heads", "ffn"], sp=["pos"], cp=["pos"], sets="batch=7 layers=5",
                inputs=("image", "targets")),
}

# name | mesh, outermost first | microbatches | further rules and lines | --set
# `batch -> ep` and the like join the rule of that axis.
ROWS = """
dp2            | dp = 2                         |   |
dp3            | dp = 3                         | 2 |
dp4            | dp = 4                         |   |
tp2            | tp = 2                         |   |
tp4            | tp = 4                         |   |
sp2            | tp = 2                         |   | sp
sp4            | tp = 4                         | 2 | sp
cp2            | cp = 2                         |   |
cp4            | cp = 4                         |   |
ring5          | cp = 5                         |   | context ring over cp
ulysses3       | cp = 3                         | 2 | context all_to_all over cp
pp2m1          | pp = 2                         | 1 |
pp2m2          | pp = 2                         | 2 |
pp2m4          | pp = 2                         | 4 |
pp4m1          | pp = 4                         | 1 |
pp4m2          | pp = 4                         | 2 |
pp4m4          | pp = 4                         | 4 | gpipe
ep2            | ep = 2                         |   |
ep3            | ep = 3                         | 2 | batch -> ep
zero1          | dp = 4                         |   | zero 1 over dp
zero1m2        | dp = 3                         | 2 | zero 1 over dp, recompute block
zero2          | dp = 4                         |   | zero 2 over dp
zero3          | dp = 4                         |   | zero 3 over dp
zero3m2        | dp = 3                         | 2 | zero 3 over dp, recompute block
hybrid         | dp = 2, ep = 2                 | 2 | batch -> ep, shard params d -> dp
dp2tp2         | dp = 2, tp = 2                 |   | sp
dp2pp2         | pp = 2, dp = 2                 | 3 |
tp2pp2         | pp = 2, tp = 2                 | 2 | sp
dp2tp2pp2      | pp = 2, dp = 2, tp = 2         | 2 | zero 1 over dp
dp2ep2         | dp = 2, ep = 2                 |   | batch -> ep
dp2tp3         | dp = 2, tp = 3                 |   | zero 1 over dp
dp2cp2tp2      | dp = 2, cp = 2, tp = 2         |   | sp
dp2cp2tp2m     | dp = 2, cp = 2, tp = 2         | 2 | sp, zero 1 over (dp, cp)
dp2tp2pp2zero3 | pp = 2, dp = 2, tp = 2         | 2 | sp, zero 3 over dp
pp2dp2cp2tp2   | pp = 2, dp = 2, cp = 2, tp = 2 | 2 |
pp2ep2tp2      | pp = 2, ep = 2, tp = 2         | 2 | batch -> ep
outer_tp       | tp = 2, dp = 3                 |   | sp, recompute attention
batch10dp4     | dp = 4                         |   | | batch=10
batch3dp4      | dp = 4                         |   | zero 1 over dp | batch=3
batch2dp3m     | dp = 3                         | 2 | | batch=2
batch9dp4m     | pp = 2, dp = 4                 | 2 | | batch=9
heads5         | tp = 2                         |   | sp | heads=5 d=15 kvheads=5
heads1         | tp = 2                         |   | | heads=1 kvheads=1 group=1
vocab61        | tp = 4                         |   | sp | vocab=61
seq3cp4        | cp = 4                         |   | | seq=3
expert3ep4     | ep = 4                         |   | batch -> ep | expert=3
two_on_one     | dp = 2, ep = 2                 |   | batch -> ep, vocab -> dp, vocab -> ep
"""


class Row:
    def __init__(self, line):
        cells = [c.strip() for c in line.split("|")] + [""]
        self.name, self.mesh, micro, extra, self.sets = cells[:5]
        self.micro = int(micro or 1)
        self.flags, self.rules, self.lines = [], [], []
        depth = 0
        for part in "".join("\n" if c == "," and not depth else c for c in extra
                            if [depth := depth + (c == "(") - (c == ")")]).split("\n"):
            part = part.strip()
            if "->" in part and not part.startswith("shard"):
                self.rules.append(part)
            elif part in ("sp", "gpipe"):
                self.flags.append(part)
            elif part:
                self.lines.append(part.replace("(", "").replace(")", ""))
        self.axes = [a.split(" = ")[0] for a in self.mesh.split(", ")]
        self.ranks = 1
        for a in self.mesh.split(", "):
            self.ranks *= int(a.split(" = ")[1])

    def fits(self, model):
        return all(MODELS[model].get("stages", True) if k == "pp" else k == "dp" or MODELS[model].get(k)
                   for k in self.axes)

    def plan(self, model):
        cuts = {}                      # axis: mesh axes, in order of priority

        def cut(axis, by):
            cuts.setdefault(axis, []).append(by)

        if "dp" in self.axes:
            cut("batch", "dp")
        for rule in self.rules:
            if rule.startswith("batch"):
                cut("batch", rule.split()[-1])
        for kind in ("ep", "cp", "tp"):
            for axis in MODELS[model].get(kind, []) if kind in self.axes else []:
                cut(axis, kind)
        for rule in self.rules:
            if not rule.startswith("batch") and rule.split()[0] in sum(
                    (MODELS[model].get(k, []) for k in ("tp", "ep")), []):
                cut(rule.split()[0], rule.split()[-1])
        for axis in MODELS[model]["sp"] if "sp" in self.flags else []:
            cut(axis, "tp")
        lines = ["mesh " + self.mesh]
        if cuts:
            lines.append("shard " + ", ".join("%s -> (%s)" % (a, ", ".join(m)) for a, m in cuts.items()))
        if "pp" in self.axes:
            lines.append("pipeline layers -> pp, schedule = %s, microbatches = %d" % (
                "gpipe" if "gpipe" in self.flags else "1f1b", self.micro))
        elif self.micro > 1:
            lines.append("microbatches %d" % self.micro)
        return "plan {\n  %s\n}\n" % "\n  ".join(lines + self.lines)


class Sweep:
    def __init__(self, args, work):
        self.args, self.work = args, work
        self.wanted = {}               # what one rank computes, by model and sizes

    def command(self, words, env=None):
        r = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=self.work,
                           env=dict(os.environ, **(env or {})))
        check(r.returncode == 0, "%s\nexit %d\n%s%s" % (" ".join(words), r.returncode, r.stdout[-500:],
                                                        r.stderr[-2000:]))
        return r

    def compile(self, model, plan, sets, stem):
        with open(stem + ".plan", "w") as f:
            f.write(plan)
        path = os.path.join(HERE, "..", "fixtures", model + ".nd")
        words = [self.args.ndc, path, "-o", stem, "--plan", stem + ".plan"]
        self.command(words + [w for s in sets for w in ("--set", s)])

    def train(self, exe, data, init, log, launch=()):
        for f in (log, log + ".safetensors"):
            if os.path.exists(f):
                os.remove(f)
        self.command(list(launch) + [exe, "--data", data, "--load", init, "--steps", "3", "--clip", "0.25",
                                     "--check-replicas", "--threads", "1", "--log", log,
                                     "--save", log + ".safetensors"],
                     {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if launch else {})
        rows = [json.loads(line) for line in open(log)]
        return [(r["loss"], r["grad_norm"]) for r in rows], read_tensors(log + ".safetensors")

    def sets(self, model, row):
        source = open(os.path.join(HERE, "..", "fixtures", model + ".nd")).read()
        named = dict(s.split("=") for s in (MODELS[model]["sets"] + " " + row.sets).split())
        return ["%s=%s" % (a, n) for a, n in named.items()
                if any(line.startswith("axis %s = " % a) and line.split()[3].isdigit()
                       for line in source.split("\n"))]

    def inputs(self, model, sets, path):
        """Twice the batch and two rows more; the k-th row has k masked targets."""
        text = open(os.path.join(HERE, "..", "fixtures", model + ".nd")).read()
        size = {}
        for line in text.split("\n"):
            if line.startswith("axis "):
                name, value = line.split("#")[0][5:].split("=")
                size[name.strip()] = int(eval(value.replace("/", "//"), {}, dict(size)))
            for s in sets:
                if line.startswith("axis %s = " % s.split("=")[0]):
                    size[s.split("=")[0]] = int(s.split("=")[1])
        rng, n = random.Random(5), 2 * size["batch"] + 2
        tensors = {}
        if "image" in MODELS[model]["inputs"]:
            shape = [n, size["row"], size["col"], size["chan"]]
            tensors["image"] = ("F32", shape, [rng.gauss(0, 1) for _ in range(shape[1] * shape[2] * shape[3] * n)])
            tensors["targets"] = ("I32", [n], [-1 if k % 4 == 1 else rng.randrange(size["vocab"])
                                               for k in range(n)])
            return write_tensors(path, tensors)
        ignore = -100 if model == "encdec" else -1
        for name in MODELS[model]["inputs"]:
            seq = size["src" if name in ("source", "padding") else "tgt" if model == "encdec" else "seq"]
            tensors[name] = ("I32", [n, seq], [
                int(j > k % seq) if name == "padding"
                else ignore if name == "targets" and j < k % (seq + 1) else rng.randrange(size["vocab"])
                for k in range(n) for j in range(seq)])
        write_tensors(path, tensors)

    def one_rank(self, model, sets):
        """Where training starts, the data, and what one rank makes of them."""
        key = (model, tuple(sets))
        if key not in self.wanted:
            stem = os.path.join(self.work, "%s.%d" % (model, len(self.wanted)))
            data, first, init = stem + ".data.safetensors", stem + ".0.safetensors", stem + ".init.safetensors"
            self.inputs(model, sets, data)
            self.compile(model, "plan {\n}\n", sets, stem)
            self.command([stem, "--steps", "0", "--data", data, "--save", first])
            rng = random.Random(11)    # gains of 1 and biases of 0 hide faults
            write_tensors(init, {k: ("F32", shape, [x + rng.gauss(0, 0.2) for x in v])
                                 for (k, v), shape in zip(read_tensors(first).items(), self.shapes(first))})
            want = self.train(stem, data, init, stem + ".log") + (self.shapes(first),)
            check(len(want[0]) == 3, "not three steps")
            check(all(norm > 0.25 for _, norm in want[0]), "%s: the clip is not active: %s" % (model, want[0]))
            self.wanted[key] = (data, init, want)
        return self.wanted[key]

    @staticmethod
    def shapes(path):
        with open(path, "rb") as f:
            n = int.from_bytes(f.read(8), "little")
            head = json.loads(f.read(n))
        return [t["shape"] for name, t in head.items() if name != "__metadata__"]

    def run(self, row, model, mpi):
        sets = self.sets(model, row)
        stem = os.path.join(self.work, "%s.%s" % (row.name, model))
        try:
            data, init, (steps1, weights1, shapes1) = self.one_rank(model, sets)
            self.compile(model, row.plan(model), sets, stem)
            launchers = [()] + ([("mpirun", "--oversubscribe", "-n", str(row.ranks))] if mpi else [])
            bits = None
            for launch in launchers:
                steps, weights = self.train(stem, data, init, stem + ".log", launch)
                check(len(steps) == len(steps1), "another number of steps")
                for got, want in zip(steps, steps1):
                    for a, b in zip(got, want):
                        check(abs(a - b) <= 1e-5 * max(1, abs(b)), "(loss, norm): %s, want %s" % (got, want))
                shapes = self.shapes(stem + ".log.safetensors")
                check(shapes == shapes1, "saved with other shapes: %s" % shapes)
                d = distance(weights, weights1)
                check(d <= 1e-5, "parameters differ by %.3g" % d)
                check(bits is None or bits == weights, "threads and processes differ")
                bits = weights
            return None
        except (Failure, subprocess.TimeoutExpired) as e:
            return "FAILED: %s %s\n%s%s" % (row.name, model, row.plan(model), e)
        finally:
            for f in (stem, stem + ".c"):
                if os.path.exists(f):
                    os.remove(f)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ndc", required=True)
    p.add_argument("--all", action="store_true")
    p.add_argument("--no-mpi", action="store_true")
    p.add_argument("rows", nargs="*")
    args = p.parse_args()
    rows = [Row(line) for line in ROWS.strip().split("\n")]
    unknown = set(args.rows) - {r.name for r in rows}
    if unknown:
        sys.exit("no such row: " + ", ".join(sorted(unknown)))
    jobs = []
    for i, row in enumerate(rows):
        models = [m for m in MODELS if row.fits(m)]
        if not (args.all or args.rows):
            models = [models[i % len(models)]]
        if not args.rows or row.name in args.rows:
            mpi = not args.no_mpi and (args.all or bool(args.rows) or i % 2 == 0)
            jobs += [(row, m, mpi) for m in models]
    with tempfile.TemporaryDirectory() as work:
        sweep = Sweep(args, work)
        for row, model, _ in jobs:     # before the workers ask for them together
            sweep.one_rank(model, sweep.sets(model, row))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            failed = 0
            for said in pool.map(lambda j: sweep.run(*j), jobs):
                if said:
                    failed += 1
                    print(said, flush=True)
    print("%d rows agree with one rank, %d do not" % (len(jobs) - failed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
