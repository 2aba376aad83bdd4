"""ndc and PyTorch side by side on the CPU; benchmarks/README.md tells how to
read what this prints. Started by cpu.sh, which builds what it needs.

In each round every contestant trains for a while, one after the other, in an
order that turns; the figures are medians over the rounds, and ratios are taken
within a round first. So what disturbs the machine disturbs all of them.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

from contestants import HERE, Failed, Ndc, Torch, call, sizes

MODELS = {
    "small": "small GPT: 6 layers, width 384, 8 x 256 tokens",
    "gpt2": "GPT-2 124M: 4 x 256 tokens",
    "llama": "llama-style 100M: 4 x 256 tokens",
    "mlp": "MLP 784-2048-2048-2048-2048-10: 512 rows",
}

# PyTorch at its best: memory stays where it is instead of going back to the
# system and coming again page by page. Threads are not bound: that is slower
# where anything else runs.
TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
         "MALLOC_TOP_PAD_": str(256 << 20), "THP_MEM_ALLOC_ENABLE": "1"}

# What an older machine has: the libraries are told, too.
AVX2 = {"DNNL_MAX_CPU_ISA": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell"}


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def median(values):
    return statistics.median(values) if values else None


# ---- who takes part ---------------------------------------------------------

def ndc_can(a, option):
    return option in call([os.path.join(a.build, "ndc"), "--help"])


def contestants(a, model):
    n, size = a.threads, sizes(model, a.set)
    for dtype in ("f32", "bf16"):
        yield lambda: Ndc(a.build, model, dtype, f"ndc {dtype}", n, size)
    if model == "small" and not a.quick:
        yield lambda: Ndc(a.build, model, "f32", "ndc f32, 2x2x2 ranks",
                          options=size, plan=os.path.join(HERE, "ranks.nd"))
        if ndc_can(a, "--cpu="):
            yield lambda: Ndc(a.build, model, "f32", "ndc f32, x86-64-v3", n,
                              options=[*size, "--cpu=x86-64-v3"], env=AVX2)
    for python, label, env in torches(a, model):
        for dtype in ("f32", "bf16"):
            name = f"{label} {dtype}"
            yield lambda: Torch(python, model, dtype, name, n, size,
                                {**env, **TUNED})
            if a.compile:
                yield lambda: Torch(python, model, dtype, f"{name}, compiled",
                                    n, [*size, "--compile"], {**env, **TUNED})
            if model in a.plain:
                yield lambda: Torch(python, model, dtype,
                                    f"{name}, as installed", 0,
                                    [*size, "--plain"], env)


def start(a, model):
    """Those that can take part; what keeps the others from it is said."""
    ready = []
    for make in contestants(a, model):
        try:
            c = make()
            say(f"{model}: {c.name} starts")
            c.start()
            ready.append(c)
        except (Failed, OSError) as e:
            say(f"{model}: left out: {e}")
    return ready


# ---- rounds -----------------------------------------------------------------

def library_speed(ready, c):
    """c's products by the library of a PyTorch that is here, if one is."""
    speeds = [t.products(c.products) for t in ready
              if t.kind == "torch" and t.dtype == c.dtype
              and "--plain" not in t.command]
    return max(speeds, default=None)


def measure(a, model):
    ready = start(a, model)
    rounds = []
    try:
        for i in range(a.rounds):
            results = {}
            for k in range(len(ready)):
                c = ready[(i + k) % len(ready)]
                results[c.name] = c.run(a.seconds)
            for c in ready:
                if c.name in ("ndc f32", "ndc bf16") and not a.no_library:
                    results[c.name]["library_gflops"] = library_speed(ready, c)
            rounds.append(results)
            say(f"{model}: round {i + 1} of {a.rounds}: " + ", ".join(
                f"{name} {r['tokens_per_s']:,.0f}"
                for name, r in results.items()))
    finally:
        for c in ready:
            c.stop()
    return [dict(summary(c, ready, rounds), model=model) for c in ready]


def best_torch(c, ready, round_):
    speeds = [round_[t.name] for t in ready
              if t.kind == "torch" and t.dtype == c.dtype]
    return max(speeds, key=lambda r: r["tokens_per_s"], default=None)


def summary(c, ready, rounds):
    mine = [r[c.name] for r in rounds]
    speeds = [r["tokens_per_s"] for r in mine]
    row = dict(name=c.name, dtype=c.dtype, kind=c.kind,
               tokens_per_s=median(speeds),
               spread=(max(speeds) - min(speeds)) / median(speeds),
               step_s=median([r["step_s"] for r in mine]),
               peak_bytes=max(r["peak_bytes"] for r in mine), rounds=mine)
    if c.kind != "ndc":
        return row
    row["alone_gflops"] = median([r["alone_gflops"] for r in mine])
    row["gflops"] = median([r["gflops"] for r in mine])
    row["of_ceiling"] = median([r["products_s"] / r["step_s"] for r in mine])
    library = [r["library_gflops"] for r in mine if r.get("library_gflops")]
    row["library_gflops"] = median(library)
    best = [best_torch(c, ready, r) for r in rounds]
    if all(best):
        row["to_torch"] = median([r["tokens_per_s"] / b["tokens_per_s"]
                                  for r, b in zip(mine, best)])
        row["memory_to_torch"] = median([r["peak_bytes"] / b["peak_bytes"]
                                         for r, b in zip(mine, best)])
    one = [r.get("ndc f32") for r in rounds]
    if c.name == "ndc f32, 2x2x2 ranks" and all(one):
        row["to_one_rank"] = median([r["step_s"] / o["step_s"]
                                     for r, o in zip(mine, one)])
    return row


# ---- the compiler itself ----------------------------------------------------

def took(command):
    begin = time.perf_counter()
    call(command)
    return time.perf_counter() - begin


def section_bytes(path):
    """Of code in an executable; None where there is no `size`."""
    try:
        return int(call(["size", path]).splitlines()[1].split()[0])
    except (Failed, OSError, IndexError, ValueError):
        return None


def compile_time(a):
    ndc, folder = os.path.join(a.build, "ndc"), os.path.join(a.build, "bench")
    out = os.path.join(folder, "compiled")
    os.makedirs(folder, exist_ok=True)
    rows = []
    kinds = ["c", "llvm"] if ndc_can(a, "--kernels=") else [None]
    sources = ["small", "gpt2"] if a.quick else MODELS
    for model in sources:
        source = os.path.join(HERE, model + ".nd")
        text = out + ".c"
        front = median([took([ndc, source, "--emit=c", "-o", text])
                        for _ in range(a.rounds)])
        for kernels in kinds:
            option = [f"--kernels={kernels}"] if kernels else []
            try:
                whole = median([took([ndc, source, "-o", out, *option])
                                for _ in range(a.rounds)])
            except Failed as e:
                say(f"{model}: left out: {e}")
                continue
            rows.append(dict(model=model, kernels=kernels or "c",
                             to_text_s=front, to_executable_s=whole,
                             text_bytes=os.path.getsize(text),
                             code_bytes=section_bytes(out)))
    return rows


# ---- loss curves ------------------------------------------------------------

def curve(a, dtype, steps):
    c = Ndc(a.build, "small", dtype, f"curve {dtype}", a.threads,
            sizes("small", a.set))
    log = c.command[0] + ".log"
    say(f"{steps} steps in {dtype}")
    call([c.command[0], "--steps", str(steps), "--log", log] +
         (["--threads", str(a.threads)] if a.threads else []))
    with open(log) as f:
        return [json.loads(line)["loss"] for line in f if '"step"' in line]


def curves(a):
    """Is bf16's curve within 1% of f32's? Means of ten steps are compared."""
    wide = 10
    f32, bf16 = (curve(a, dtype, a.curve) for dtype in ("f32", "bf16"))
    rows, worst = [], 0.0
    print(f"{'steps':>9} {'f32':>9} {'bf16':>9} {'apart':>8}")
    for i in range(0, len(f32), wide):
        x, y = (statistics.fmean(v[i:i + wide]) for v in (f32, bf16))
        worst = max(worst, abs(y / x - 1))
        rows.append(dict(step=i + 1, f32=x, bf16=y, apart=y / x - 1))
        print(f"{i + 1:4}-{min(i + wide, len(f32)):<4} {x:9.4f} {y:9.4f} "
              f"{100 * (y / x - 1):7.2f}%")
    print(f"bf16 is within {100 * worst:.2f}% of f32")
    return dict(rows=rows, worst=worst)


# ---- what is printed --------------------------------------------------------

COLUMNS = [  # title, width, what of the row
    ("tokens/s", 10, lambda r: f"{r['tokens_per_s']:,.0f}"),
    ("spread", 7, lambda r: f"{100 * r['spread']:.0f}%"),
    ("step s", 8, lambda r: f"{r['step_s']:.3f}"),
    ("x torch", 8, lambda r: f"{r['to_torch']:.2f}"),
    ("of ceil.", 9, lambda r: f"{100 * r['of_ceiling']:.0f}%"),
    ("GFLOP/s", 8, lambda r: f"{r['gflops']:.0f}"),
    ("alone", 7, lambda r: f"{r['alone_gflops']:.0f}"),
    ("library", 8, lambda r: f"{r['library_gflops']:.0f}"),
    ("peak MB", 8, lambda r: f"{r['peak_bytes'] / 1e6:,.0f}"),
    ("x torch", 8, lambda r: f"{r['memory_to_torch']:.2f}"),
]


def cell(get, row):
    try:
        return get(row)
    except (KeyError, TypeError):
        return "-"


def print_models(rows):
    wide = max(len(r["name"]) for r in rows) + 1
    for model in dict.fromkeys(r["model"] for r in rows):
        print(f"\n{MODELS[model]}")
        print(" " * wide + "".join(f"{t:>{w}}" for t, w, _ in COLUMNS))
        for r in rows:
            if r["model"] != model:
                continue
            print(f"{r['name']:{wide}}" + "".join(
                f"{cell(get, r):>{w}}" for _, w, get in COLUMNS))
            if "to_one_rank" in r:
                print(f"{'':{wide}}a step takes {r['to_one_rank']:.2f} times "
                      "that of one rank")


def print_compile(rows):
    print("\nthe compiler        kernels  to C, ms  to executable, ms   "
          "C, KB  code, KB")
    for r in rows:
        code = r["code_bytes"]
        print(f"{r['model']:20}{r['kernels']:>7}{1e3 * r['to_text_s']:10.0f}"
              f"{1e3 * r['to_executable_s']:19.0f}"
              f"{r['text_bytes'] / 1e3:8.0f}"
              + (f"{code / 1e3:10.0f}" if code else f"{'-':>10}"))


def machine(a):
    info = dict(cpus=os.cpu_count(), threads=a.threads,
                system=platform.platform(), load=os.getloadavg()[0])
    try:
        with open("/proc/cpuinfo") as f:
            for line in f:
                key, _, value = line.partition(":")
                info.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    flags = info.get("flags", "").split()
    return dict(
        cpu=info.get("model name", platform.processor()), cpus=info["cpus"],
        threads=a.threads, system=info["system"], load=info["load"],
        features=[f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
                  if f in flags])


# ---- the command line -------------------------------------------------------

def torch_of(command, env, more):
    """A PyTorch that works, as (command, label, environment), or None."""
    try:
        done = subprocess.run(
            [*command, "-c", "import torch; print(torch.__version__)"],
            env=dict(os.environ, **env), capture_output=True, text=True)
    except OSError:
        return None
    if done.returncode != 0:
        say(f"no PyTorch in {command[0]}: {done.stderr.strip()[-200:]}")
        return None
    version = done.stdout.strip().split("+")[0]
    return (command, f"torch {version}{more}", env)


def torches(a, model):
    found = []
    if a.python and not a.no_torch:
        found.append(torch_of([a.python], {}, ""))
    if a.debian and model in a.debian_models and not a.no_torch:
        lib = os.path.join(a.debian, "usr/lib")
        places = [os.path.join(lib, p, q) for p in os.listdir(lib)
                  if p.endswith("-linux-gnu") for q in ("openblas-openmp", "")]
        env = {"LD_LIBRARY_PATH": ":".join([*places, lib]),
               "PYTHONPATH": os.path.join(lib, "python3/dist-packages")}
        found.append(torch_of(["/usr/bin/python3"], env, " openmp"))
    if not any(found):
        say(f"{model}: no PyTorch takes part")
    return [t for t in found if t]


def options():
    arg = argparse.ArgumentParser(prog="benchmarks/cpu.sh",
                                  description=__doc__.split("\n")[0])
    arg.add_argument("--quick", action="store_true",
                     help="the small GPT alone, few steps")
    arg.add_argument("--models", default=",".join(MODELS))
    arg.add_argument("--rounds", type=int, default=3)
    arg.add_argument("--seconds", type=float, default=3.0,
                     help="of training per contestant and round")
    arg.add_argument("--threads", type=int,
                     default=len(os.sched_getaffinity(0)))
    arg.add_argument("--set", action="append", default=[], metavar="AXIS=N",
                     help="another size, in every model that has the axis")
    arg.add_argument("--json", metavar="FILE")
    arg.add_argument("--curve", type=int, metavar="N", nargs="?", const=200,
                     help="compare the losses of bf16 and f32 instead")
    arg.add_argument("--compile", action="store_true",
                     help="also torch.compile; takes minutes")
    arg.add_argument("--plain", default="small", metavar="MODELS",
                     help="where PyTorch takes part as installed, too")
    arg.add_argument("--debian-models", default="small", metavar="MODELS",
                     help="where Debian's PyTorch does, if it is there")
    arg.add_argument("--no-torch", action="store_true")
    arg.add_argument("--no-library", action="store_true",
                     help="the products by PyTorch's library: not measured")
    arg.add_argument("--build", default="build", help=argparse.SUPPRESS)
    arg.add_argument("--python", help=argparse.SUPPRESS)
    arg.add_argument("--debian", help=argparse.SUPPRESS)
    a = arg.parse_args()
    if a.quick:
        a.models, a.rounds, a.seconds = "small", min(a.rounds, 2), 1.0
    a.models = a.models.split(",")
    a.plain = [] if a.quick else a.plain.split(",")
    a.debian_models = a.debian_models.split(",")
    for m in a.models:
        if m not in MODELS:
            arg.error(f"no model \"{m}\"; there are {', '.join(MODELS)}")
    return a


def main():
    a = options()
    result = dict(machine=machine(a))
    if a.curve:
        result["curve"] = curves(a)
    else:
        result["models"] = [r for m in a.models for r in measure(a, m)]
        result["compile"] = compile_time(a)
        m = result["machine"]
        print(f"{m['cpu']}, {m['cpus']} CPUs ({', '.join(m['features'])}), "
              f"{a.threads} threads, {a.rounds} rounds")
        print_models(result["models"])
        print_compile(result["compile"])
    if a.json:
        with open(a.json, "w") as f:
            json.dump(result, f, indent=1)
    return 1 if a.curve and result["curve"]["worst"] > 0.01 else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as e:
        sys.exit(f"cpu.sh: {e}")
