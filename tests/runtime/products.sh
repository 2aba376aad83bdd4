# products.sh - --products: the file counts the work of a step, on one rank and
# on more, in f32 and bf16, and within tiles, whose products are one thread's
# own; and training goes on as if nothing had been asked.
. "$(dirname "$0")/../lib.sh"
[ -x "$ndc" ] || exit 77
[ -n "${NDC_LONG:-}" ] || export NDC_CFLAGS=-Og

program() { # PRECISION MESH
    cat <<END
axis batch = 26
axis pixel = 61
axis hid   = 35
axis class = 13
use nn
model net(x: f32[batch, pixel], t: i32[batch]) {
  h = gelu(linear[pixel -> hid](x) as up)
  y = linear[hid -> class](h) as down
  return mean[batch](cross_entropy[class](y, t))
}
train net {
  data      = synthetic
  optimizer = sgd(lr = 0.1, momentum = 0.9)
  clip      = 0.1
  precision = $1
  steps     = 4
}
plan {
  mesh dp = $2
  shard batch -> dp
  microbatches 2
}
END
}

run() { # NAME OPTIONS...
    name=$1
    shift
    timeout 60 "$work/net" --save "$work/$name" --log "$work/$name.log" "$@" \
        >"$work/out" 2>"$work/err" || {
        cat "$work/err"
        fail "$what: $name"
    }
    sed -i 's/,"tokens_per_s.*//' "$work/$name.log"
}

# Two products forward; of each the gradient of the weights, and of one that of
# its input. A sum is a multiplication and an addition.
flop=$((2 * 26 * (2 * 61 * 35 + 3 * 35 * 13)))

for what in 'f32 1' 'f32 2' 'bf16 1'; do
    program "${what% *}" "${what#* }" >"$work/net.nd"
    "$ndc" "$work/net.nd" -o "$work/net" 2>"$work/err" || {
        cat "$work/err"
        fail "ndc, $what"
        continue
    }
    run plain
    run asked --products "$work/products"
    cmp "$work/plain" "$work/asked" || fail "$what: weights"
    cmp "$work/plain.log" "$work/asked.log" || fail "$what: losses"
    python3 - "$work/products" "$flop" <<'END' || fail "$what: the file"
import json, sys
p = json.load(open(sys.argv[1]))
assert p["flop"] == int(sys.argv[2]), p["flop"]
assert p["tokens"] == 26 and p["step_s"] > 0 and p["products_s"] > 0, p
own = sum(s["flop"] for s in p["shapes"])
assert own * p["ranks"] == p["flop"], own
assert all(2 * s["m"] * s["n"] * s["k"] * s["calls"] == s["flop"]
           for s in p["shapes"]), p
END
done

what=tiles
cat >"$work/net.nd" <<'END'
axis batch = 2
axis seq = 61
axis kv = seq
axis head = 5
model net(x: f32[batch, seq, head], y: f32[batch, kv, head]) {
  w = param [head] ~ normal(1)
  s = sum[head](x * w * y)
  p = exp(s) / sum[kv](exp(s))
  o = sum[kv](p * y)
  return mean[batch, seq, head](o * o)
}
train net {
  data      = synthetic
  optimizer = sgd(lr = 0.1)
  steps     = 2
}
END
"$ndc" "$work/net.nd" -o "$work/net" 2>"$work/err" || fail "ndc, $what"
grep -q 'small = nd_small,' "$work/net.c" || fail "$what: no kernels of its own"
for threads in 1 2; do
    run plain --threads $threads
    run asked --threads $threads --products "$work/products"
    cmp "$work/plain" "$work/asked" || fail "$what: weights"
    python3 - "$work/products" <<'END' || fail "$what: the file"
import json, sys
p = json.load(open(sys.argv[1]))
own = [s for s in p["shapes"] if s["own"]]
assert {(s["m"], s["n"], s["k"], s["calls"]) for s in own} >= {
    (61, 61, 5, 6), (61, 5, 61, 4)} and p["flop"] > 0, own
END
done
[ $failed = 0 ]
