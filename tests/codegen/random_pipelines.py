"""random_pipelines.py --ndc NDC [--mpi] [--keep DIR] FROM TO - pipelines by seed.

A random model of a few kinds (towers with skip connections, attention, experts,
an encoder and a decoder; tied tables, dropout, masks) under a random plan with a
pipeline, beside the same plan with all stages on one device and the same
microbatches. Both are generated programs:

    loss, gradients of what no two stages have     the same bits
    other gradients, all of bfs, the norm          CLOSE
    three steps with a clip that is active         CLOSE

A step of plain SGD at a rate of 2^20 turns weights into gradients. All runs
have random delays (NDRT_JITTER). `random_pipelines.py 7 7` runs seed 7 and
prints its program.
"""
import argparse
import concurrent.futures
import json
import os
import random
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "cases"))
from cases import Failure, check, read_tensors  # noqa: E402

CLOSE = 2e-5
AXES = "axis batch = %d\naxis d = 6\naxis ffn = 7\naxis layers = %d\n"


def tower(r):
    """Skip connections from before the repeat and a first half into a second."""
    text = "model m(x: f32[batch, d], part: f32[batch]) {\n"
    tied = r.random() < 0.5
    text += "  e = param [d] ~ normal(1.0)\n  s0 = param [d] ~ normal(1.0)\n  y = x * e\n" \
            "  skip = tanh(sum[d](x * s0))\n"
    text += "  repeat layers {\n    h = linear[d -> ffn](y) as up\n"
    if r.random() < 0.5:
        text += "    h = dropout(h, 0.3)\n"
    text += "    y = y + linear[ffn -> d](tanh(h)) as down\n"
    if r.random() < 0.6:
        text += "    y = y * (1.0 + 0.1 * skip)\n"
    text += "  }\n"
    text += "  z = y * %s + 0.3 * skip\n" % ("e" if tied else "0.7")
    text += "  each = sum[d](z * z) * (part + 0.25)\n"
    text += "  return sum[batch](each) / (sum[batch](part) + 4.25)\n}\n"
    return "", text, ["layers"], ["ffn -> tp"], {"e"} if tied else set()


def attention(r):
    axes = "axis seq = 5\naxis vocab = 7\naxis heads = 3\naxis head = d / heads\n"
    text = "model m(t: i32[batch, seq], g: i32[batch, seq]) {\n"
    text += "  wte = param [vocab -> d] ~ normal(0.5)\n  x = wte[vocab: t]\n  repeat layers {\n"
    text += "    x = x + attention[seq, d -> heads, head](rmsnorm[d](x) as n1%s) as attn\n" % (
        ", p_drop = 0.3" if r.random() < 0.4 else "")
    text += "    x = x + linear[ffn -> d](gelu(linear[d -> ffn](x) as up)) as down\n  }\n"
    tied = r.random() < 0.5
    text += "  logits = %s\n" % ("sum[d](layernorm[d](x) * wte)" if tied else "linear[d -> vocab](layernorm[d](x)) as head")
    text += "  each = cross_entropy[vocab](logits, g, ignore = 3)\n"
    text += "  return mean[batch, seq](each, where = g != 3)\n}\n"
    rules = ["ffn -> tp", "heads -> tp", "vocab -> tp"] + (["seq -> tp"] if r.random() < 0.5 else [])
    return axes, text, ["layers"], rules, {"wte"} if tied else set()


def experts(r):
    axes = "axis seq = 3\naxis vocab = 7\naxis expert = 3\n"
    text = """model m(t: i32[batch, seq], g: i32[batch, seq]) {
  x = embedding[vocab -> d](t) as wte
  aux = 0.0
  zed = 0.0
  repeat layers {
    y, a, z = moe[seq, d -> expert, ffn](rmsnorm[d](x) as n2) as moe
    x = x + y
    aux = aux + a
    zed = zed + z
  }
  logits = linear[d -> vocab](x) as head
  loss = mean[seq](cross_entropy[vocab](logits, g))
  return mean[batch](loss + 0.02 * aux + 0.001 * zed)
}
"""
    return axes, text, ["layers"], ["expert -> tp"] if r.random() < 0.6 else ["ffn -> tp"], set()


def encdec(r):
    axes = "axis src = 5\naxis tgt = 4\naxis vocab = 7\naxis heads = 3\naxis head = d / heads\naxis dec = %d\n" % (
        r.randint(1, 4))
    one = r.random() < 0.4
    second = "layers" if one else "dec"
    text = """model m(source: i32[batch, src], tokens: i32[batch, tgt], targets: i32[batch, tgt]) {
  emb = param [vocab -> d] ~ normal(0.4)
  e = emb[vocab: source] + sinusoid[src, d]()
  repeat layers as enc {
    e = e + attention[src, d -> heads, head](layernorm[d](e) as n1, causal = false) as attn
    e = e + linear[ffn -> d](gelu(linear[d -> ffn](e) as up)) as down
  }
  x = %s + sinusoid[tgt, d]()
  repeat %s as dec {
    x = x + attention[tgt, d -> heads, head](layernorm[d](x) as n1) as attn
    x = x + cross_attention[tgt, src, d -> heads, head](layernorm[d](x) as n2, e) as cross
    x = x + linear[ffn -> d](gelu(linear[d -> ffn](x) as up)) as down
  }
  loss = cross_entropy[vocab](linear[d -> vocab](x) as head, targets, ignore = 2)
  return mean[batch, tgt](loss, where = targets != 2)
}
""" % ("emb[vocab: tokens]" if r.random() < 0.5 else "(embedding[vocab -> d](tokens) as emb2)", second)
    return axes, text, ["layers"] if one else ["layers", "dec"], ["ffn -> tp", "heads -> tp", "vocab -> tp"], {"emb"}


KINDS = {"loop": (["gpipe", "1f1b", "bfs(1)", "zb_h1", "zb_h2", "interleaved(1)"], 1, "zb_h1"),
         "loop2": (["interleaved(2)", "bfs(2)"], 2, None), "loop3": (["interleaved(3)", "bfs(3)"], 3, None),
         "vee": (["zb_v", "v_half", "v_min", "dualpipe_v"], 2, None)}


class Case:
    def __init__(self, seed):
        r = self.r = random.Random(seed)
        self.seed = seed
        self.batch = r.choice([8, 12, 17, 17, 17, 23])
        self.layers = r.randint(2, 9)
        kind = r.choice([tower, attention, experts, encdec])
        axes, model, pipes, rules, self.tied = kind(r)
        self.pp = r.choice([2, 2, 3, 4])
        mesh = {}
        if r.random() < 0.35:
            mesh["dp"] = 2
        if r.random() < 0.35:
            mesh["tp"] = 2
        self.kinds, self.v, _ = KINDS[r.choice(["loop", "loop", "loop2", "loop3", "vee", "vee"])]
        self.compiled = r.choice(self.kinds)
        self.micro = r.randint(1, 9)
        if self.compiled == "dualpipe_v":
            self.micro = max(self.micro, 2 * self.pp)
        if self.compiled.startswith("interleaved") and self.micro >= 2 * self.pp:
            self.micro = self.pp
        dp = mesh.get("dp", 1)
        self.micro = min(self.micro, self.batch // dp)
        cut = ["batch -> dp"] if "dp" in mesh else []
        cut += rules if "tp" in mesh else []
        more = ["  shard " + ", ".join(cut)] if cut else []
        if "dp" in mesh and r.random() < 0.7:
            more.append("  zero %d over dp" % r.randint(0, 3))
        total = self.layers
        if len(pipes) > 1:
            total += int(axes.rsplit("axis dec = ", 1)[1])
        elif "as dec" in model:
            total *= 2
        stages = ""
        n = self.pp * self.v
        if r.random() < 0.45:
            at = sorted(r.randint(0, total) for _ in range(n - 1))
            stages = ", stages = [%s]" % ", ".join(
                str(b - a) for a, b in zip([0] + at, at + [total]))
        self.recompute = r.choice(["none", "none", "attention", "block", "auto"])
        meshes = ["%s = %d" % x for x in mesh.items()]
        self.model = "use nn\n" + AXES % (self.batch, self.layers) + axes + model
        self.model += "train m {\n  data = synthetic\n  optimizer = sgd(lr = 0.01)\n  steps = 1\n  seed = 3\n}\n"
        self.one = "plan {\n%s%s\n  microbatches %d\n}\n" % (
            "  mesh %s\n" % ", ".join(meshes) if meshes else "", "\n".join(more), self.micro)
        pipe = pipes[0] if len(pipes) == 1 else "(%s)" % ", ".join(pipes)
        self.plan = "plan {\n  mesh %s\n%s\n  pipeline %s -> pp, schedule = %s, microbatches = %d%s\n" % (
            ", ".join(r.sample(["pp = %d" % self.pp] + meshes, 1 + len(meshes))), "\n".join(more), pipe,
            self.compiled, self.micro, stages)
        self.ranks = self.pp * dp * mesh.get("tp", 1)

    def write(self, work):
        self.stem = os.path.join(work, "s%d" % self.seed)
        open(self.stem + ".nd", "w").write(self.model)
        how = self.recompute
        if how == "auto":
            open(self.stem + ".pipe", "w").write(self.plan + "}\n")
            r = run([ARGS.ndc, self.stem + ".nd", "--plan", self.stem + ".pipe", "--emit=plan"])
            if r.returncode == 1:
                return r
            most = int(r.stdout.split("at most ")[1].split("(")[1].split(" ")[0].replace(",", ""))
            how = "auto(%d)" % (most * self.r.choice([60, 75, 85, 90, 95, 100]) // 100)
        self.plan += "  recompute %s\n}\n" % how
        open(self.stem + ".pipe", "w").write(self.plan)
        if self.recompute == "auto":
            r = run([ARGS.ndc, self.stem + ".nd", "--plan", self.stem + ".pipe", "--emit=plan"])
            if r.returncode == 1:
                return r
            how = re.search(r"^recompute auto, .*: (\w+)$", r.stdout, re.M).group(1)
        open(self.stem + ".one", "w").write(self.one.replace("}", "  recompute %s\n}" % how))
        return None


def run(words, **env):
    return subprocess.run(words, capture_output=True, text=True, timeout=300,
                          env=dict(os.environ, **env))


def compile(case, name):
    return run([ARGS.ndc, case.stem + ".nd", "--plan", case.stem + "." + name, "-o", case.stem + "_" + name])


def train(case, name, options, launch=(), jitter="200"):
    exe = case.stem + "_" + name
    for f in (exe + ".log", exe + ".st"):
        if os.path.exists(f):
            os.remove(f)
    words = list(launch) + [exe, "--threads", "1", "--log", exe + ".log", "--save", exe + ".st", "--check-replicas"]
    words += options
    r = run(words, NDRT_JITTER=jitter, NDRT_EARLY="13")
    if r.returncode == 2 and "legal are" in r.stderr:
        return None
    check(r.returncode == 0, "%s\nexit %d\n%s" % (" ".join(words), r.returncode, r.stderr[-3000:]))
    steps = [json.loads(line) for line in open(exe + ".log")]
    return [s["loss"] for s in steps], [s["grad_norm"] for s in steps], read_tensors(exe + ".st")


GRAD = ["--lr", "1048576"]
CLIP = ["--lr", "0.3", "--clip", "0.05", "--steps", "3"]


def near(a, b, scale=None):
    return abs(a - b) <= CLOSE * max(abs(b) if scale is None else scale, 1e-30)


def compare(what, got, one, case, close):
    tied = {n for n in one[2] if any(t in n.split(".") for t in case.tied)}
    check(got[2].keys() == one[2].keys(), what + ": other tensors")
    for a, b in zip(got[0], one[0]):
        check(a == b if not close else near(a, b), "%s: loss %r, one device %r" % (what, got[0], one[0]))
    for a, b in zip(got[1], one[1]):
        check(near(a, b), "%s: norm %r, one device %r" % (what, got[1], one[1]))
    everything = max(abs(x) for v in one[2].values() for x in v)
    for n, b in one[2].items():
        a = got[2][n]
        most = max(abs(x) for x in b)
        far = max(abs(x - y) for x, y in zip(a, b))
        if not close and n not in tied:
            check(a == b, "%s: %s is off by %g of %g" % (what, n, far, most))
        else:
            check(far <= CLOSE * max(most, everything * 1e-2), "%s: %s is off by %g of %g" % (what, n, far, most))


def one_seed(seed, work):
    case = Case(seed)
    r = case.write(work)
    r = r or compile(case, "pipe")
    if r.returncode != 0:
        text = r.stderr
        ok = r.returncode == 1 and "error: " in text and "a fault of ndc" not in text and ":1:1: error: cc" not in text
        check(ok, "ndc, exit %d\n%s" % (r.returncode, text[-3000:]))
        return "refused: " + text.split("error: ", 1)[1].split("\n")[0]
    r = compile(case, "one")
    check(r.returncode == 0, "one: exit %d\n%s" % (r.returncode, r.stderr[-2000:]))
    open_sizes = case.batch in (17, 23)
    one = {}

    def reference(m, close):
        if (m, close) not in one:
            micro = ["--microbatches", str(m)] if m != case.micro else []
            one[m, close] = train(case, "one", (CLIP if close else GRAD) + micro)
        return one[m, close]
    runs = [(case.compiled, case.micro)]
    waits = case.compiled.startswith(("zb", "v_", "dual"))
    kinds = [k for k in case.kinds if waits or not k.startswith(("zb", "v_", "dual"))]
    dp = 2 if "batch -> dp" in case.plan else 1
    for _ in range(4):
        k = case.r.choice(kinds)
        m = case.r.randint(case.micro, min(10, case.batch // dp)) if open_sizes and case.micro > 1 else case.micro
        if k == "dualpipe_v" and m < 2 * case.pp:
            continue
        runs.append((k, m))
    n = 0
    for i, (k, m) in enumerate(runs):
        options = [] if i == 0 else ["--schedule", k, "--microbatches", str(m)]
        if case.r.random() < 0.25:
            options += ["--messages", "inline"]
        if case.r.random() < 0.5:
            options += ["--overlap", "on"]     # gradients are summed beside backward
        launch = ["mpirun", "--oversubscribe", "-n", str(case.ranks)] if ARGS.mpi and i == 1 else ()
        what = "%s, %d microbatches %s" % (k, m, " ".join(options))
        got = train(case, "pipe", GRAD + options, launch)
        if got is None:
            continue
        compare(what, got, reference(m, False), case, k.startswith("bfs"))
        if i < 2:
            compare(what + ", clip", train(case, "pipe", CLIP + options), reference(m, True), case, True)
        n += 1
    return n


def main():
    global ARGS
    a = argparse.ArgumentParser()
    a.add_argument("--ndc", required=True)
    a.add_argument("--mpi", action="store_true")
    a.add_argument("--keep")
    a.add_argument("--jobs", type=int, default=2)
    a.add_argument("first", type=int)
    a.add_argument("last", type=int)
    ARGS = a.parse_args()
    failed = runs = refused = 0
    why = {}
    with tempfile.TemporaryDirectory() as temporary, concurrent.futures.ThreadPoolExecutor(ARGS.jobs) as pool:
        work = ARGS.keep or temporary
        jobs = {s: pool.submit(one_seed, s, work) for s in range(ARGS.first, ARGS.last + 1)}
        for s, job in jobs.items():
            try:
                n = job.result()
                if isinstance(n, str):
                    refused += 1
                    why[n] = why.get(n, []) + [s]
                else:
                    runs += n
            except (Failure, subprocess.TimeoutExpired) as e:
                failed += 1
                case = Case(s)
                print("FAIL: seed %d: %s\n%s" % (s, e, case.plan), flush=True)
            if ARGS.first == ARGS.last:
                print(open(os.path.join(work, "s%d.nd" % s)).read() + open(os.path.join(work, "s%d.pipe" % s)).read())
            if not ARGS.keep:
                for f in os.listdir(work):
                    if f.startswith("s%d_" % s):
                        os.remove(os.path.join(work, f))
    for text, seeds in sorted(why.items()):
        print("refused %s: %s" % (seeds, text))
    print("%d runs of %d programs agree, %d plans are refused, %d seeds fail" % (
        runs, ARGS.last + 1 - ARGS.first - refused - failed, refused, failed))
    return 1 if failed or not runs else 0


if __name__ == "__main__":
    sys.exit(main())
