#!/usr/bin/env python3
"""Token files and .npz files: the losses that their numbers give, and what is
said of files that do not fit.

    data.py NDC WORK
"""
import os
import struct
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "cases"))
from cases import write_tensors  # noqa: E402

TOKENS = """
axis batch = 3
axis seq = 5
axis vocab = 61
model m(tokens: i32[batch, seq], targets: i32[batch, seq]) {
  e = param [vocab] ~ normal(1)
  f = param [vocab] ~ normal(1)
  return sum[batch, seq](e[vocab: tokens] * f[vocab: targets])
}
train m {
  data = %s
  optimizer = sgd(lr = 0.01)
  steps = 6
  eval = every(2)
}
"""
# At rate 0 and weights 1 the loss is the sum of all inputs of the batch.
ARRAYS = """
axis batch = 3
axis k = 2
model m(x: f32[batch, k], y: i32[batch], z: i32[batch]) {
  w = param [k] ~ ones
  return sum[batch](sum[k](x * w) + cast[f32](y) + 100 * cast[f32](z))
}
train m {
  data = %s
  optimizer = sgd(lr = 0)
  steps = 3
}
"""
failed = 0


def check(ok, what, text=""):
    global failed
    if not ok:
        failed += 1
        print("FAILED: %s\n%s" % (what, text))


def build(ndc, model, data):
    with open("m.nd", "w") as f:
        f.write(model % data)
    subprocess.run([ndc, "m.nd", "-o", "m"], check=True)


def run(*options):
    r = subprocess.run(["./m", *options], capture_output=True, text=True, timeout=60)
    out = [x for x in r.stdout.split("\n") if x.startswith("step") or x.startswith("eval")]
    return r.returncode, [float(x.split("loss ")[1].split()[0]) for x in out], r.stderr


def refuse(what, *say, options=()):
    code, _, text = run(*options)
    check(code == 1 and all(s in text for s in say), what, "%d: %s" % (code, text))


# ---- tokens --------------------------------------------------------------------

def put_tokens(ids, form, header=None, path="t.bin"):
    with open(path, "wb") as f:
        if header:
            f.write(struct.pack("<256i", *(list(header) + [0] * (256 - len(header)))))
        f.write(struct.pack("<%d%s" % (len(ids), form), *ids))


def tokens(ndc):
    ids = [(i * i + 3 * i) % 61 for i in range(200)]
    put_tokens(ids, "B")
    build(ndc, TOKENS, 'text("t.bin")')
    _, want, _ = run()
    check(len(want) == 9, "text trains")
    for name, form in (("u8", "B"), ("u16", "H"), ("u32", "I")):
        build(ndc, TOKENS, 'tokens("t.bin", %s)' % name)
        for header in (None, (20240520, 1, len(ids))):
            put_tokens(ids, form, header)
            check(run()[1] == want, "%s, header %s" % (name, header))
    build(ndc, TOKENS, 'tokens("t.bin")')
    put_tokens(ids[:50] + [61] + ids[51:], "H", (20240520, 1, 200))
    refuse("an id beyond the vocabulary", "value 61 at offset 50, outside 0 .. 60")
    put_tokens(ids[:5], "H")
    refuse("too short", "has 5 tokens; windows of 5 need at least 6")
    put_tokens(ids[:5], "H", (20240520, 1, 5))
    refuse("too short behind a header", "has 5 tokens; windows of 5 need at least 6")
    put_tokens(ids + [0], "B")
    refuse("odd size", "201 bytes, which is no whole number of u16 tokens")
    put_tokens(ids, "H", (20240520, 1, 201))
    refuse("a wrong count", "says that it has 201 tokens", "400 bytes follow")
    put_tokens(ids, "H", (20240520, 7, 200))
    refuse("another version", "version 7")
    put_tokens([20240521] + [0] * 255 + ids, "I")
    build(ndc, TOKENS, 'tokens("t.bin", u32)')
    refuse("another magic number is a token", "value 20240521 at offset 0")
    put_tokens([4000000000] * 30, "I")
    refuse("beyond 31 bits", "value 4000000000 at offset 0")
    # a file of its own for evaluation
    put_tokens(ids, "H")
    put_tokens(ids[7:50], "H", path="e.bin")
    build(ndc, TOKENS, 'tokens("t.bin", u16, eval = "e.bin")')
    code, own, _ = run()
    check(code == 0 and own != want and len(own) == 9, "evaluation data of their own")
    put_tokens(ids[7:50], "H", path="f.bin")
    check(run("--eval-data", "f.bin", "--data", "t.bin")[1] == own, "--eval-data")
    check(run("--data", "t.bin")[1] == want, "--data alone")


# ---- .npz ------------------------------------------------------------------------

X = [[1, 2], [3, 4], [5, 6], [7, 8]]
Y = [10, 20, 30, 40]
Z = [True, False, True, True]


def npy(descr, shape, data, order=False, version=1):
    text = "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }" % (descr, order, shape)
    head = 10 if version == 1 else 12
    text += " " * (-(head + len(text) + 1) % 64) + "\n"
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text.encode() + data


def members(xt="<f4", yt="<i4", xform="f", yform="i", **kw):
    return {"x": npy(xt, (4, 2), struct.pack("<8" + xform, *(v for r in X for v in r)), **kw),
            "y": npy(yt, (4,), struct.pack("<4" + yform, *Y)),
            "z": npy("|b1", (4,), struct.pack("<4?", *Z))}


def put_npz(m, method=zipfile.ZIP_STORED, path="d.npz"):
    with zipfile.ZipFile(path, "w", method) as z:
        for k, v in m.items():
            with z.open(k + ".npy", "w", force_zip64=True) as f:     # as numpy does
                f.write(v)


def arrays(ndc):
    rows = [sum(x) + y + (100 if z else 0) for x, y, z in zip(X, Y, Z)]
    want = [float(sum(rows[(3 * s + i) % 4] for i in range(3))) for s in range(3)]
    build(ndc, ARRAYS, 'arrays("d.npz")')
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        for kw in (dict(), dict(xt="<f8", xform="d"), dict(xt="<f2", xform="e"), dict(xt="<i4", xform="i"),
                   dict(yt="<i8", yform="q"), dict(yt="|u1", yform="B"), dict(version=2), dict(version=3)):
            put_npz(members(**kw), method)
            code, got, text = run()
            check(got == want, "%s %s" % (method, kw), "%s, not %s\n%s" % (got, want, text))
    good = members()
    put_npz(dict(good, x=npy("<f4", (4, 2), bytes(32), order=True)))
    refuse("Fortran order", '"x" is in Fortran order')
    put_npz(dict(good, x=npy(">f4", (4, 2), bytes(32))))
    refuse("big-endian", "dtype '>f4'", "little-endian")
    put_npz(dict(good, x=npy("<f4", (4, 2), bytes(28))))
    refuse("too little data", '"x" has 28 bytes of data, its shape needs 32')
    put_npz(dict(good, x=b"nothing"))
    refuse("no .npy", '"x" is no .npy file')
    put_npz(dict(good, y=npy("<i8", (4,), struct.pack("<4q", 1, 2, 2 ** 40, 3))))
    refuse("beyond 32 bits", "y has the value 1099511627776 at offset 2")
    put_npz(dict(good, y=npy("<f4", (4,), bytes(16))))
    refuse("floats for integers", 'tensor "y" is F32, the model wants i32')
    put_npz({k: good[k] for k in "xz"})
    refuse("an array is missing", 'no tensor "y"')
    put_npz(dict(good, y=npy("<i4", (3,), bytes(12))))
    refuse("other numbers of samples", "3 samples")
    put_npz(good, zipfile.ZIP_BZIP2)
    refuse("another packing", "packed in a way that is not read")
    put_npz(good, zipfile.ZIP_DEFLATED)
    raw = bytearray(open("d.npz", "rb").read())
    with open("d.npz", "wb") as f:
        f.write(raw[:len(raw) // 2])
    refuse("cut short", "is no .npz file, or is cut short")
    put_npz(good)
    raw = bytearray(open("d.npz", "rb").read())
    raw[raw.index(struct.pack("<2f", 5, 6))] ^= 1
    with open("d.npz", "wb") as f:
        f.write(raw)
    refuse("damaged", '"x" is damaged')
    write_tensors("d.safetensors", {"x": ("F32", [4, 2], [v for r in X for v in r]), "y": ("I32", [4], Y),
                                    "z": ("I32", [4], [int(z) for z in Z])})
    check(run("--data", "d.safetensors")[1] == want, "--data with another kind of arrays")
    open("d.npz", "w").close()
    refuse("an empty file", "cut short")


def main():
    ndc = os.path.abspath(sys.argv[1])
    os.chdir(sys.argv[2])
    tokens(ndc)
    arrays(ndc)
    print("%d failed" % failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
