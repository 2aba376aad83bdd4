#!/bin/sh
# moe of the library, which computes the chosen experts alone, means what it
# means with every expert computed for every token and most gates 0: loss,
# outputs and every gradient, on one device and on meshes, in the evaluator and
# in generated programs. Five experts for two
# to six tokens, so some get none; rows of zeros, for which all experts tie.
set -u
[ -n "${NDC_LONG:-}" ] || export NDC_CFLAGS=-Og
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 count=0

program() {
    cat <<END
axis batch = 4
axis seq = 3
axis d = 3
axis expert = $4
axis ffn = 5
axis layers = 2
use nn
fn dense[seq, d -> expert, ffn](x, k = 2, renormalise = true) {
  axis slot = k
  logits = linear[d -> expert](x, bias = false) as router
  g = softmax[expert](logits)
  best, e = top_k[expert -> slot](g)
  chosen = one_hot[expert](e)
  best = where(renormalise, best / sum[slot](best), best)
  gate = sum[slot](best * chosen)
  w1 = param [expert, d -> ffn] ~ normal(0.02)
  w3 = param [expert, d -> ffn] ~ normal(0.02)
  w2 = param [expert, ffn -> d] ~ normal(0.02)
  h = silu(sum[d](x * w1)) * sum[d](x * w3)
  y = sum[expert](gate * sum[ffn](h * w2))
  share = mean[seq](sum[slot](chosen))
  balance = expert * sum[expert](share * mean[seq](g))
  z = logsumexp[expert](logits)
  return y, balance, mean[seq](z * z)
}
model m(u: f32[batch, seq, d]) {
  x = linear[d -> d](where((index[batch] + index[seq]) % 3 == 1, 0, u), bias = false) as first
  aux = 0.0
  repeat layers {
    y, b, z = $1[seq, d -> expert, ffn](x, k = $2, renormalise = $3) as moe
    x = x + 20 * y
    aux = aux + b + 0.1 * z
  }
  y, b, z = $1[seq, d -> expert, ffn](x, k = $2, renormalise = $3) as last
  output x, y, b, z
  return mean[batch](mean[seq, d](x * y * 30 + y * x * x) + aux + b + z)
}
train { optimizer = sgd(0.1) }
END
}

plans="x = 1|||
dp = 3|shard batch -> dp||
ep = 2|shard expert -> ep|microbatches 2|
dp = 2, ep = 2|shard batch -> dp, expert -> ep, ffn -> ep|recompute block|
tp = 2, pp = 2|shard ffn -> tp, seq -> tp|pipeline layers -> pp, schedule = 1f1b, microbatches = 2|
ep = 2|shard batch -> ep, expert -> ep||
ep = 3|shard batch -> ep, expert -> ep|microbatches 2|
dp = 2, ep = 2|shard batch -> (dp, ep), expert -> ep|recompute block|
ep = 2, tp = 2|shard batch -> ep, expert -> ep, ffn -> tp, seq -> tp||
pp = 2, ep = 2|shard batch -> ep, expert -> ep|pipeline layers -> pp, schedule = 1f1b, microbatches = 2|
ep = 7|shard batch -> ep, expert -> ep||
ep = 3|shard seq -> ep, expert -> ep||
ep = 2, cp = 2|shard batch -> ep, seq -> cp, expert -> ep|recompute attention|
ep = 2, dp = 2|shard batch -> (ep, dp), expert -> ep|zero 1 over dp|
ep = 2|shard expert -> ep, batch -> ep||
a = 2, b = 2|shard batch -> (a, b), expert -> (a, b)||"

# on TOOL OPTIONS...: with the plan at hand
on() {
    tool=$1
    shift
    count=$((count + 1))
    if ! out=$("$NDC_BUILD/tests/$tool" "$@" --plan "$work/plan" 2>&1); then
        failed=$((failed + 1))
        printf 'FAILED: %s %s\n%s\n%s\n' "$tool" "$*" "$(cat "$work/plan")" \
            "$out"
    fi
}

with_plan() {
    printf 'plan {\n  mesh %s\n  %s\n  %s\n}\n' "$1" "$2" "$3" >"$work/plan"
}

for how in '1 false 5' '2 true 5' '3 true 3'; do
    program moe $how >"$work/sparse.nd"
    program dense $how >"$work/dense.nd"
    while IFS='|' read -r mesh rules more _; do
        with_plan "$mesh" "$rules" "$more"
        on nd_eval --compare --against="$work/dense.nd" "$work/sparse.nd"
        [ "$how" != '2 true 5' ] || on nd_diff --work "$work/p" "$work/sparse.nd"
    done <<END
$plans
END
done

# Experts of another make, where rows travel.
other=$NDC_SOURCE/tests/codegen/diff/experts_with_biases.nd
while IFS='|' read -r mesh rules more; do
    with_plan "$mesh" "$rules" "$more"
    on nd_eval --compare "$other"
    on nd_diff --work "$work/p" "$other"
done <<'END'
ep = 3|shard batch -> ep, expert -> ep|microbatches 2
x = 2, y = 2|shard batch -> (x, y), expert -> y, ffn -> x|
x = 2, y = 2|shard a -> x, batch -> y, expert -> x, ffn -> y|
END
echo "$((count - failed)) passed, $failed failed"
[ $failed = 0 ]
