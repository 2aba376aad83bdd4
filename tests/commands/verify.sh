#!/bin/sh
# ndc verify: plans that compute what one device computes, on small sizes that
# keep what divides and what does not; plans that are refused; sweeps; usage.
. "$(dirname "$0")/../lib.sh"
cd "$work" || exit 2
# expect STATUS 'TEXT of stdout or stderr' arguments...
expect() {
    want=$1 text=$2
    shift 2
    "$ndc" verify "$@" >out 2>&1
    got=$?
    if [ $got -ne "$want" ] || ! grep -q -F -e "$text" out; then
        fail "ndc verify $*: status $got, expected $want and \"$text\""
        cat out
    fi
}
gpt=$NDC_SOURCE/examples/gpt.nd

# Every example as it is.
for f in cnn encdec gpt llama mlp moe vit wave; do
    expect 0 'equal to one device' "$NDC_SOURCE/examples/$f.nd"
done
expect 0 'equal to one device' "$NDC_SOURCE/examples/lora.nd" --model lora

# Uneven: five heads over two ranks, ten rows over four, a vocabulary that
# leaves one over.
cat >uneven.nd <<'ND'
plan {
  mesh  dp = 4, tp = 2
  shard batch -> dp, heads -> tp, ffn -> tp, vocab -> tp
}
ND
expect 0 'equal to one device' "$gpt" --plan=uneven.nd \
    --set batch=10 --set heads=5 --set d=65 --set vocab=50257
# 10 = 2 * 4 + 2 rows, 5 = 2 * 2 + 1 heads, 50257 = 1 over.
grep -q '^sizes: batch 10, seq 3 (256), vocab 5 (50257), d 10 (65), heads 5' \
    out || {
    fail "sizes that do not keep what is over"
    cat out
}

# Stages and microbatches, tied weights, ZeRO; fewer rows than ranks.
cat >all.nd <<'ND'
plan {
  mesh      pp = 3, dp = 2, tp = 2
  shard     batch -> dp, heads -> tp, ffn -> tp, vocab -> tp, seq -> tp
  pipeline  layers -> pp, schedule = gpipe, microbatches = 3
  zero      1 over dp
}
ND
expect 0 '12 ranks, 3 stages, 3 microbatches' "$gpt" --plan=all.nd
sed 's/microbatches = 3/microbatches = 32/' all.nd >many.nd
expect 0 '3 stages, 8 microbatches (32)' "$gpt" --plan=many.nd --set batch=128
expect 0 '3 stages, 32 microbatches' "$gpt" --plan=many.nd --set batch=128 \
    --no-shrink --set seq=3 --set d=12 --set heads=2 --set ffn=3 --set vocab=5
expect 0 'equal to one device' "$gpt" --plan=all.nd --set batch=5
expect 0 'sizes: batch 5, ' "$gpt" --plan=all.nd --set batch=5
# The same bytes every time.
"$ndc" verify "$gpt" --plan=all.nd >once
"$ndc" verify "$gpt" --plan=all.nd >twice
cmp once twice || fail "not the same again"

# 64 ranks take seconds of one core.
(
    ulimit -t 20
    "$ndc" verify "$gpt" --mesh pp=2,dp=4,tp=8 >out 2>&1
) && grep -q '64 ranks' out || {
    fail "64 ranks"
    cat out
}

# Sizes as they are; what is frozen; bf16, which is not rounded here; a mask.
cat >small.nd <<'ND'
axis batch = 7
axis d = 5
axis e = 4
model m(x: f32[batch, d], mask: i32[batch]) {
  w = param [d -> e] ~ normal(1)
  v = param [e] ~ ones
  y = where(cast[bool](mask), sum[e](sum[d](x * w) * v), 0.0)
  return sum[batch](y * y) / (1 + sum[batch](cast[f32](cast[bool](mask))))
}
train m {
  steps = 1
  precision = bf16
  freeze = ["v"]
}
plan {
  mesh dp = 3, tp = 2
  shard batch -> dp, e -> tp
  microbatches 2
}
ND
expect 0 'v          f32[e/tp]' small.nd
grep -q '(frozen)' out || fail "nothing is frozen"
expect 0 'sizes: batch 7, d 3 (5), e 4' small.nd
expect 0 'equal to one device' small.nd --no-shrink
grep -q '^sizes' out && fail "--no-shrink has sizes"

# Sweeps.
expect 0 '15 meshes: 15 equal, 0 differ, 0 refused' small.nd --all
expect 0 '4 meshes: 4 equal' small.nd --all --mesh dp=2
cat >deep.nd <<'ND'
axis batch = 4
axis d = 3
axis layers = 2
model m(x: f32[batch, d]) {
  repeat layers {
    w = param [d] ~ ones
    x = x * w
  }
  return mean[batch, d](x * x)
}
train m { steps = 1 }
plan {
  mesh pp = 2
  pipeline layers -> pp, schedule = 1f1b, microbatches = 2
}
ND
expect 0 '4 meshes: 2 equal, 0 differ, 2 refused' deep.nd --all
grep -q 'pp=3  *refused: 3 stages for 2' out || fail "3 stages, 2 layers"
sed 's/schedule = 1f1b/stages = [1, 1]/' deep.nd >given.nd
expect 0 '1 equal, 0 differ, 3 refused' given.nd --all
grep -q 'pp=3  *refused: ' out || fail "3 stages, 2 given"

# Sizes that --mesh gives do not count among the 12 ranks, wherever they stand.
expect 0 '4 meshes: 4 equal' small.nd --all --mesh dp=16
expect 0 '4 meshes: 4 equal' small.nd --all --mesh tp=13

# A mask that hides every target of a small vocabulary: equal zeros are no
# proof, so the sizes grow; where they cannot, that is an error.
cat >masked.nd <<'ND'
axis batch = 8
axis vocab = 29
axis word = vocab
use nn
model m(t: i32[batch], y: i32[batch]) {
  w = param [vocab -> word] ~ normal(0.1)
  v = param [word] ~ zeros
  l = cross_entropy[word](w[vocab: t] + v * 0.0, y)
  return mean[batch](l, where = y > FIRST)
}
plan {
  mesh  dp = 2
  shard batch -> dp
}
ND
sed 's/FIRST/3/' masked.nd >some.nd
expect 0 'vocab 12 (29)' some.nd
grep -q '^w .* [0-9.e+-]*$' out && grep -q '^v .* (always 0)$' out || {
    fail "what was not exercised is not marked"
    cat out
}
sed 's/FIRST/99/' masked.nd >nothing.nd
expect 1 'every gradient is 0 in every step' nothing.nd
expect 1 'every gradient is 0 in every step' nothing.nd --no-shrink
expect 1 'not compared: on one device' nothing.nd --all

# Integers that index nothing are what they are compared with, at times.
cat >kinds.nd <<'ND'
axis batch = 4
axis d = 3
model m(x: f32[batch, d], t: i32[batch]) {
  w = param [d] ~ normal(1.0)
  return mean[batch](sum[d](x * w), where = CHOSEN)
}
plan {
  mesh  dp = 2
  shard batch -> dp
}
ND
for chosen in 't == 1' 't == 7' '1000 == t' 't > 250' 't < 0' 't != 0' \
    'cast[f32](t) == 3.0' 'cast[bool](t)' 't == 3 or t == 90'; do
    sed "s/CHOSEN/$chosen/" kinds.nd >kind.nd
    expect 0 'equal to one device' kind.nd
done
# An index of a large vocabulary, as far as it may.
sed 's/FIRST/3/; s/y > 3/y == 2/' masked.nd >picked.nd
expect 0 'vocab 3 (29)' picked.nd

# Gradients that are 0 because terms cancel are so but for rounding: alone they
# prove nothing, beside others they count as zeros.
cat >cancel.nd <<'ND'
axis batch = 4
axis d = 6
use nn
model m(x: f32[batch, d]) {
  w = param [d] ~ normal(0.7)
  return mean[batch](mean[d](softmax[d](w)) * x[d: 0])
}
plan {
  mesh  a = 2
  shard d -> a
}
ND
expect 1 'every gradient is 0 in every step' cancel.nd
sed 's/  return/  v = param [d] ~ ones\n  return 1e-5 * sum[d](v) +/' \
    cancel.nd >beside.nd
expect 0 'equal to one device' beside.nd
grep -q '^w .* (always 0)$' out || {
    fail "a gradient that is 0 but for rounding"
    cat out
}
[ -e /dev/full ] && {
    "$ndc" verify small.nd >/dev/full 2>out
    [ $? -eq 1 ] && grep -q 'cannot write' out ||
        fail "a table that cannot be written"
}

# What cannot be kept is refused as elsewhere; what is no number is told.
expect 1 'a stage would be empty' deep.nd --mesh pp=11
sed 's/mean\[batch, d\](x \* x)/log(0.0 * mean[batch, d](x) - 1)/' deep.nd |
    sed '/pipeline/d' >nan.nd
expect 1 'nothing to compare with' nan.nd
grep -q 'could not be evaluated' out && fail "NaN: not evaluated"
expect 1 'note: that is with small axes; --no-shrink keeps' nan.nd
expect 1 'unknown axis in --set `nothing`' small.nd --set nothing=3
expect 1 'and 1024 are simulated at most' small.nd --mesh dp=1025
sed 's/  return/  output y\n  z =/' small.nd | sed '/^train/,/^}/d' >none.nd
expect 1 'error: ' none.nd
expect 1 'cannot read `nowhere.nd`: No such file or directory' nowhere.nd

expect 2 'no input file'
expect 2 'a second file: `small.nd`' small.nd small.nd
expect 2 'did you mean `--no-shrink`?' small.nd --no-shink
"$ndc" small.nd --emit=ir -o small.ndir
expect 2 'is a graph' small.ndir
[ $failed = 0 ] && echo "ok"
