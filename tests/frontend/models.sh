#!/bin/sh
# Of several models --model picks one, with its own train and plan blocks and
# those without a name; it may be a model of a file that is used. --set is about
# the axes of the main file.
set -u
ndc=$NDC_BUILD/ndc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
failed=0

fail() {
    failed=$((failed + 1))
    echo "FAILED: $*"
    cat err
}
# expect STATUS 'TEXT of stderr' arguments...
expect() {
    want=$1 text=$2
    shift 2
    "$ndc" "$@" >out 2>err
    got=$?
    [ $got -eq "$want" ] && { [ -z "$text" ] || grep -q -F -e "$text" err; } ||
        fail "ndc $*: status $got, expected $want and \"$text\""
}

mkdir used
cat >used/small.nd <<'ND'
axis batch = 5
axis d = 2
model small(x: f32[batch, d]) {
  w = param [d] ~ ones
  return mean[batch, d](x * w)
}
ND
cat >two.nd <<'ND'
use "used/small.nd"
axis batch = 4
model one(x: f32[batch]) {
  w = param [batch] ~ ones
  return mean[batch](x * w)
}
model two(x: f32[batch]) {
  w = param [batch] ~ ones
  v = param [batch] ~ ones
  return mean[batch](x * w * v)
}
train one { steps = 1 }
train two { steps = 2 }
plan two {
  mesh dp = 2
  shard batch -> dp
}
ND
expect 1 'one model is compiled; ndc --model NAME says which' two.nd --emit=ir
expect 1 'unknown model in --model `tow`; did you mean `two`?' two.nd --emit=ir \
    --model=tow
expect 1 '`d` is an axis of `used/small.nd`' two.nd --emit=ir --model=one --set d=3
for m in one two small; do
    expect 0 '' two.nd --emit=spmd --model=$m
    mv out $m.ir
    cp $m.ir $m.ndir
done
expect 2 '--model is for programs' one.ndir --emit=ir --model=one
grep -q 'param "v"' two.ir && grep -q '^mesh dp = 2' two.ir || fail two
grep -q -e 'param "v"' -e '^mesh dp = 2' one.ir && fail one
# The sample axis is the `batch` of the model's own file.
name=$(sed -n 's/^axis \(batch.*\) = 5$/\1/p' small.ir)
[ -n "$name" ] && grep -q "^sample $name\$" small.ir || fail small

# `train` may name a model of a file that is used.
cat >train.nd <<'ND'
use "used/small.nd"
axis batch = 4
train small { steps = 3 }
ND
expect 0 '' train.nd --emit=ir

[ $failed -eq 0 ] && echo "ok"
[ $failed -eq 0 ]
