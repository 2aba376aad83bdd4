"""The models of benchmarks/*.nd in PyTorch: a training step as one would write
it, at PyTorch's best settings or as it comes.

    torch_models.py small --dtype bf16 --steps 5     one JSON line
    torch_models.py small --serve                    one per line of stdin:
        steps 5                 trains so long
        products FILE           multiplies what a program of ndc wrote there

Same shapes, losses, AdamW (matrices decay), clip at 1, made-up tokens. Without
--plain: fused AdamW and flushed denormals where PyTorch has them; the memory
allocator and the threads' places come from the environment, see cpu.py.
"""
import argparse
import contextlib
import json
import math
import resource
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

GPT = {
    "small": dict(batch=8, seq=256, vocab=256, d=384, heads=6, layers=6,
                  gelu="none"),
    "gpt2": dict(batch=4, seq=256, vocab=50257, d=768, heads=12, layers=12,
                 gelu="tanh"),
}
LLAMA = dict(batch=4, seq=256, vocab=16000, d=768, kvheads=4, group=3, ffn=2048,
             layers=12)
MLP = {"batch": 512, "pixel": 784, "hid": 2048, "layers": 3, "class": 10}


def attend(q, k, v):
    """Causal, [batch, heads, seq, head]."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    n = q.shape[-2]
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    mask = torch.ones(n, n, dtype=torch.bool).triu(1)
    return s.masked_fill(mask, -math.inf).softmax(-1) @ v


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c["d"]
        self.heads, self.gelu = c["heads"], c["gelu"]
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.qkv(self.ln1(x)).view(b, n, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = attend(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + self.o(y)
        return x + self.down(F.gelu(self.up(self.ln2(x)),
                                    approximate=self.gelu))


class Gpt(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte = nn.Embedding(c["vocab"], c["d"])
        self.wpe = nn.Parameter(torch.zeros(c["seq"], c["d"]))
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.ln = nn.LayerNorm(c["d"])

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe
        for b in self.blocks:
            x = b(x)
        logits = F.linear(self.ln(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class RmsNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))
        self.own = hasattr(F, "rms_norm")

    def forward(self, x):
        if self.own:
            return F.rms_norm(x, (x.shape[-1],), self.g, 1e-5)
        v = x.float().pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(v + 1e-5) * self.g


def rope(x, cos, sin):
    """Halves of a head as pairs; [batch, heads, seq, head]."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class LlamaBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.kv, self.group = c["d"], c["kvheads"], c["group"]
        self.head = d // (self.kv * self.group)
        self.n1, self.n2 = RmsNorm(d), RmsNorm(d)
        self.q = nn.Linear(d, d, bias=False)
        self.k = nn.Linear(d, self.kv * self.head, bias=False)
        self.v = nn.Linear(d, self.kv * self.head, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.gate = nn.Linear(d, c["ffn"], bias=False)
        self.up = nn.Linear(d, c["ffn"], bias=False)
        self.down = nn.Linear(c["ffn"], d, bias=False)

    def forward(self, x, cos, sin):
        b, n, d = x.shape
        h = self.n1(x)
        q, k, v = (f(h).view(b, n, -1, self.head).transpose(1, 2)
                   for f in (self.q, self.k, self.v))
        k, v = (t.repeat_interleave(self.group, 1)
                for t in (rope(k, cos, sin), v))
        y = attend(rope(q, cos, sin), k.to(v.dtype), v)
        x = x + self.o(y.transpose(1, 2).reshape(b, n, d))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte = nn.Embedding(c["vocab"], c["d"])
        self.blocks = nn.ModuleList(LlamaBlock(c) for _ in range(c["layers"]))
        self.norm = RmsNorm(c["d"])
        self.out = nn.Linear(c["d"], c["vocab"], bias=False)
        half = self.blocks[0].head // 2
        turn = torch.outer(torch.arange(c["seq"]).float(),
                           10000.0 ** -(torch.arange(half) / half))
        self.register_buffer("cos", turn.cos())
        self.register_buffer("sin", turn.sin())

    def forward(self, tokens, targets):
        x = self.wte(tokens)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        for b in self.blocks:
            x = b(x, cos, sin)
        logits = self.out(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.first = nn.Linear(c["pixel"], c["hid"])
        self.hidden = nn.ModuleList(nn.Linear(c["hid"], c["hid"])
                                    for _ in range(c["layers"]))
        self.last = nn.Linear(c["hid"], c["class"])

    def forward(self, x, labels):
        x = F.relu(self.first(x))
        for f in self.hidden:
            x = F.relu(f(x))
        return F.cross_entropy(self.last(x), labels)


def make(name, sizes):
    """A model, how much a batch counts, and a function that makes one. sizes:
    other ones than those above."""
    c = {"mlp": MLP, "llama": LLAMA, **GPT}[name]
    c = {axis: sizes.get(axis, n) for axis, n in c.items()}
    if name == "mlp":
        return (Mlp(c), c["batch"],
                lambda: (torch.rand(c["batch"], c["pixel"]),
                         torch.randint(c["class"], (c["batch"],))))
    size = (c["batch"], c["seq"])
    return (Llama(c) if name == "llama" else Gpt(c), c["batch"] * c["seq"],
            lambda: tuple(torch.randint(c["vocab"], size) for _ in range(2)))


def make_optimizer(model, plain):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [dict(params=matrices, weight_decay=0.1),
              dict(params=vectors, weight_decay=0.0)]
    for how in [{}] if plain else [dict(fused=True), dict(foreach=True), {}]:
        with contextlib.suppress(TypeError, RuntimeError):
            return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), **how)
    raise SystemExit("no AdamW")


class Trainer:
    def __init__(self, a):
        torch.manual_seed(1)
        if a.threads:
            torch.set_num_threads(a.threads)
        if not a.plain:
            torch.set_flush_denormal(True)
        self.model, self.tokens, self.batch = make(a.model,
                                                    dict(a.set or []))
        for p in self.model.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        self.optimizer = make_optimizer(self.model, a.plain)
        self.parameters = list(self.model.parameters())
        self.run = torch.compile(self.model) if a.compile else self.model
        self.narrow = a.dtype == "bf16"

    def step(self):
        inputs = self.batch()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.narrow):
            loss = self.run(*inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return loss.item()

    def steps(self, n):
        times = []
        for _ in range(n):
            begin = time.perf_counter()
            loss = self.step()
            times.append(time.perf_counter() - begin)
        step = statistics.median(times)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return dict(step_s=step, tokens_per_s=self.tokens / step, loss=loss,
                    times=times, tokens=self.tokens, peak_bytes=peak,
                    threads=torch.get_num_threads(),
                    torch=torch.__version__,
                    parameters=sum(p.numel() for p in self.parameters))


def multiply(a, b, c, add):
    if a.dim() == 2:
        return (lambda: c.addmm_(a, b)) if add else (
            lambda: torch.mm(a, b, out=c))
    return (lambda: c.baddbmm_(a, b)) if add else (
        lambda: torch.bmm(a, b, out=c))


def products(path):
    """The shapes of --products, by PyTorch's libraries on the whole matrices:
    the same number of calls, small ones many at a time."""
    with open(path) as f:
        shapes = json.load(f)["shapes"]
    seconds = flop = 0.0
    for s in shapes:
        m, n, k, calls = s["m"], s["n"], s["k"], max(1, round(s["calls"]))
        small = 2 * m * n * k < 1 << 26
        batch = min(calls, 64) if small else 1
        dtype = torch.bfloat16 if s["type"] == "bf16" else torch.float32
        a = torch.rand(batch, m, k).to(dtype)
        b = torch.rand(batch, k, n).to(dtype)
        c = torch.zeros(batch, m, n, dtype=dtype)
        if s["a"] == "columns":
            a = a.transpose(1, 2).contiguous().transpose(1, 2)
        if s["b"] == "columns":
            b = b.transpose(1, 2).contiguous().transpose(1, 2)
        if batch == 1:
            a, b, c = a[0], b[0], c[0]
        run = multiply(a, b, c, s["add"])
        run()
        begin = time.perf_counter()
        for _ in range(math.ceil(calls / batch)):
            run()
        took = time.perf_counter() - begin
        seconds += took * calls / (batch * math.ceil(calls / batch))
        flop += 2 * m * n * k * calls
    return dict(seconds=seconds, gflops=1e-9 * flop / seconds)


def axis_size(text):
    axis, n = text.split("=")
    return axis, int(n)


def main():
    arg = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arg.add_argument("model", choices=[*GPT, "llama", "mlp"])
    arg.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    arg.add_argument("--steps", type=int, default=5)
    arg.add_argument("--warmup", type=int, default=2)
    arg.add_argument("--threads", type=int, default=0)
    arg.add_argument("--compile", action="store_true")
    arg.add_argument("--plain", action="store_true", help="as installed")
    arg.add_argument("--serve", action="store_true")
    arg.add_argument("--set", action="append", type=axis_size,
                     metavar="AXIS=N")
    a = arg.parse_args()

    trainer = Trainer(a)
    warm = trainer.steps(a.warmup) if a.warmup else {}
    if not a.serve:
        print(json.dumps(trainer.steps(a.steps)), flush=True)
        return
    print(json.dumps(warm), flush=True)
    for line in sys.stdin:
        what, value = line.split(None, 1)
        result = (products(value.strip()) if what == "products"
                  else trainer.steps(int(value)))
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
