"""schedules.py --ndc NDC [--all] [--no-mpi] [PROGRAM ...] - schedules as data.

A program is compiled once per number of devices and placement of its stages
(schedules.txt) and runs every schedule of that placement, with any number of
microbatches, by --schedule and --microbatches. Against the same microbatches
on one device:

    the loss                             the same bits
    the gradient of an untied parameter  the same bits
    that of a tied one, all of bfs       1e-6
    the gradient norm, the loss after    1e-6

A step of plain SGD at a rate of 2^20 turns weights into gradients: what is
subtracted from is lost in rounding. All runs have random delays (NDRT_JITTER)
and a time limit: sends wait for their receivers everywhere, so a schedule that
relies on buffers would hang. A schedule may be refused where a rule of its own
says so.
"""
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "cases"))
from cases import Failure, check, read_tensors  # noqa: E402

# No number of microbatches but 1 divides 17, so sizes are no constants.
MODEL = """
axis batch = 17
axis d = 6
axis h = 10
axis layers = 26

model m(x: f32[batch, d], part: f32[batch]) {
  e = param [d] ~ normal(1.0)
  y = x * e
  repeat layers {
    w = param [d -> h] ~ normal(0.5)
    b = param [h] ~ normal(0.3)
    u = param [h -> d] ~ normal(0.3)
    y = y + sum[h](tanh(sum[d](y * w) + b) * u)
  }
  z = y * e
  each = sum[d](z * z) * (part + 0.25)
  return sum[batch](each) / (sum[batch](part) + 4.25)
}

train m {
  data      = synthetic
  optimizer = sgd(lr = 0.01)
  steps     = 1
  seed      = 3
  eval      = every(1, batches = 2)
}
"""
TIED = {"e"}
SAME, CLOSE = 0.0, 1e-6


def table():
    for line in open(os.path.join(HERE, "schedules.txt")):
        words = line.split()
        if words and words[0] != "#":
            yield words[0], int(words[1]), words[2], words[3:]


def check_table():
    """Every synchronous kind is in the table."""
    named = {k.split("(")[0] for _, _, _, kinds in table() for k in kinds}
    text = open(os.path.join(HERE, "../../runtime/schedule/sched.def")).read()
    for entry in text.split("\nSCHED(")[1:]:
        name, _, _, traits = [w.strip().strip('"') for w in entry.split(",")[1:5]]
        check("a" in traits or name in named, name + " is not in schedules.txt")


class Sweep:
    def __init__(self, args, work):
        self.args, self.work = args, work
        self.one = {}                  # by microbatches: loss, norm, eval, gradients
        self.ran = self.refused = 0

    def compile(self, name, plan):
        stem = os.path.join(self.work, name)
        with open(stem + ".nd", "w") as f:
            f.write(MODEL)
        with open(stem + ".plan", "w") as f:
            f.write("plan {\n  %s\n}\n" % plan)
        r = subprocess.run([self.args.ndc, stem + ".nd", "--plan", stem + ".plan", "-o", stem],
                           capture_output=True, text=True, timeout=120)
        check(r.returncode == 0, "%s\n%s" % (plan, r.stderr[-2000:]))
        return stem

    def start(self, exe, options, launch=()):
        env = dict(os.environ, NDRT_JITTER="300")
        words = list(launch) + [exe, "--threads", "1"] + options
        return subprocess.run(words, capture_output=True, text=True, timeout=120, env=env), words

    def run(self, exe, out, options, launch=()):
        """None if it is refused."""
        for f in (out + ".log", out + ".st"):
            if os.path.exists(f):
                os.remove(f)
        r, words = self.start(exe, ["--lr", "1048576", "--log", out + ".log", "--save", out + ".st"] + options,
                              launch)
        if r.returncode == 2 and "legal are" in r.stderr:
            return None
        check(r.returncode == 0, "%s\nexit %d\n%s" % (" ".join(words), r.returncode, r.stderr[-3000:]))
        step = json.loads(open(out + ".log").readline())
        return step["loss"], step["grad_norm"], read_tensors(out + ".st")

    def loss_after(self, exe, out, options):
        """The evaluation after a step that is none."""
        self.start(exe, ["--lr", "0", "--log", out + ".log"] + options)
        return json.loads(open(out + ".log").readlines()[1])["loss"]

    def on_one(self):
        for first in (1, 2):
            exe = self.compile("one%d" % first, "microbatches %d" % first)
            for m in self.args.micro:
                if (m == 1) == (first == 1):
                    options = ["--microbatches", str(m)]
                    self.one[m] = self.run(exe, exe, options) + (self.loss_after(exe, exe, options),)

    def compare(self, what, got, m, order_differs):
        loss, norm, grads, _ = self.one[m]
        check(got[0] == loss, "%s: loss %r, one device %r" % (what, got[0], loss))
        check(abs(got[1] - norm) <= CLOSE * norm, "%s: norm %r, one device %r" % (what, got[1], norm))
        check(got[2].keys() == grads.keys(), what + ": other tensors")
        for name in grads:
            near = CLOSE if order_differs or name in TIED else SAME
            most = max(abs(x) for x in grads[name])
            far = max(abs(x - y) for x, y in zip(got[2][name], grads[name]))
            check(far <= near * most, "%s: gradient of %s is off by %g of %g" % (what, name, far, most))

    def as_file(self, kind, p, m):
        """file("zb_v_2_4.csv"), which is written."""
        name = "%s_%d_%d.csv" % (kind, p, m)
        r = subprocess.run([self.args.ndc, "schedule", kind, "--ranks", str(p), "--microbatches", str(m),
                            "--emit=csv", "-o", os.path.join(self.work, name)], capture_output=True, text=True)
        check(r.returncode == 0, r.stderr)
        return 'file("%s")' % name

    def program(self, p, name, v, in_plan, kinds):
        for first in (1, 2):
            compiled = self.as_file(in_plan[5:], p, first) if in_plan.startswith("file:") else in_plan
            exe = self.compile("%s_%d_%d" % (name, p, first), "mesh pp = %d\n  pipeline layers -> pp, schedule = %s, "
                               "microbatches = %d" % (p, compiled, first))
            for kind in kinds:
                for m in self.args.micro:
                    if (m == 1) == (first == 1):
                        self.schedule(exe, p, kind, m)

    def schedule(self, exe, p, kind, m):
        options = ["--schedule", kind, "--microbatches", str(m)]
        what = "%s on %d devices, %d microbatches" % (kind, p, m)
        bfs = kind.startswith("bfs")
        got = self.run(exe, exe, options)
        if not got:
            check(kind.startswith("interleaved") or kind == "dualpipe_v", what + " is refused")
            self.refused += 1
            return
        self.compare(what, got, m, bfs)
        self.ran += 1
        if m == self.args.micro[-1]:
            self.compare(what + ", inline", self.run(exe, exe, options + ["--messages", "inline"]), m, bfs)
            loss, one = self.loss_after(exe, exe, options), self.one[m][3]
            check(abs(loss - one) <= CLOSE * abs(one), "%s: evaluation %r, one device %r" % (what, loss, one))
        if not self.args.no_mpi and p in (2, 4, 8) and m == self.args.micro[-1]:
            got = self.run(exe, exe, options, ["mpirun", "--oversubscribe", "-n", str(p)])
            self.compare(what + ", mpirun", got, m, bfs)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--ndc", required=True)
    a.add_argument("--all", action="store_true")
    a.add_argument("--no-mpi", action="store_true")
    a.add_argument("--devices", type=int, nargs="*")
    a.add_argument("programs", nargs="*")
    args = a.parse_args()
    args.micro = list(range(1, 17)) if args.all else [1, 3, 4, 8]
    devices = args.devices or (range(2, 9) if args.all else (2, 3, 4))
    failed = 0
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(2) as pool:
        check_table()
        sweep = Sweep(args, work)
        sweep.on_one()
        jobs = [pool.submit(sweep.program, p, *row) for row in table() for p in devices
                if not args.programs or row[0] in args.programs]
        for job in jobs:
            try:
                job.result()
            except (Failure, subprocess.TimeoutExpired) as e:
                failed += 1
                print("FAIL:", e)
        print("%d runs agree, %d are refused by a rule" % (sweep.ran, sweep.refused))
    return 1 if failed or not sweep.ran else 0


if __name__ == "__main__":
    sys.exit(main())
