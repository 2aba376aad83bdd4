"""Who takes part in benchmarks/cpu.py: a program that ndc made, which starts
anew in each round, and PyTorch, whose process stays and waits between rounds.

    run(seconds) trains for about so long, and says how fast:
    {"step_s": 0.91, "tokens_per_s": 2250, "peak_bytes": 5.1e8, ...}
"""
import json
import os
import re
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
MOST_STEPS = 50


class Failed(Exception):
    pass


def call(command, **more):
    """What it prints; where it fails, the last lines of that."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.STDOUT, **more)
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-12:])
        raise Failed(f"{' '.join(command)}\n{tail}")
    return done.stdout


def axes(model):
    """What the source calls its axes."""
    with open(os.path.join(HERE, model + ".nd")) as f:
        return re.findall(r"^axis (\w+)", f.read(), re.M)


def sizes(model, chosen):
    """Options that set those of the axes that the model has."""
    return [word for s in chosen if s.split("=")[0] in axes(model)
            for word in ("--set", s)]


def variant(source, precision):
    """The program of that precision."""
    with open(source) as f:
        text = f.read()
    return re.sub(r"^train \w+ \{$", rf"\g<0>\n  precision = {precision}",
                  text, flags=re.M)


class Ndc:
    """options: of ndc. env: of the program. plan: a file, or None."""

    def __init__(self, build, model, dtype, name, threads=0, options=(),
                 env=None, plan=None):
        self.name, self.dtype, self.kind = name, dtype, "ndc"
        self.env = dict(os.environ, **(env or {}))
        stem = os.path.join(build, "bench",
                            re.sub(r"\W+", "_", f"{model} {name}"))
        os.makedirs(os.path.dirname(stem), exist_ok=True)
        with open(stem + ".nd", "w") as f:
            f.write(variant(os.path.join(HERE, model + ".nd"), dtype))
        command = [os.path.join(build, "ndc"), stem + ".nd", "-o", stem,
                   *options]
        call(command + (["--plan", plan] if plan else []))
        self.products = stem + ".products"
        self.command = [stem, "--products", self.products]
        if threads and not plan:
            self.command += ["--threads", str(threads)]
        self.step_s = None

    def start(self):
        self.run(0)

    def run(self, seconds):
        # A step, and its products once more; the first one warms up.
        steps = 1 + between(1, seconds / (2 * (self.step_s or 1e9)))
        call(self.command + ["--steps", str(steps)], env=self.env)
        with open(self.products) as f:
            p = json.load(f)
        self.step_s = p["step_s"]
        return dict(p, tokens_per_s=p["tokens"] / p["step_s"],
                    gflops=1e-9 * p["flop"] / p["step_s"],
                    alone_gflops=1e-9 * p["flop"] / p["products_s"])

    def stop(self):
        pass


class Torch:
    def __init__(self, python, model, dtype, name, threads=0, options=(),
                 env=None):
        self.name, self.dtype, self.kind = name, dtype, "torch"
        self.command = [*python, os.path.join(HERE, "torch_models.py"), model,
                        "--dtype", dtype, "--serve", *options]
        if threads:
            self.command += ["--threads", str(threads)]
        self.env = dict(os.environ, **(env or {}))
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            self.command, env=self.env, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE)
        self.step_s = self.answer()["step_s"]

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise Failed(f"{' '.join(self.command)}: ended, status "
                         f"{self.process.returncode}")
        return json.loads(line)

    def ask(self, what):
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.answer()

    def run(self, seconds):
        r = self.ask(f"steps {between(1, seconds / self.step_s)}")
        self.step_s = r["step_s"]
        return r

    def products(self, path):
        """The products of that file, by PyTorch's libraries: GFLOP/s."""
        return self.ask(f"products {path}")["gflops"]

    def stop(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()
            self.process = None


def between(least, n):
    return max(least, min(MOST_STEPS, int(n + 0.5)))
