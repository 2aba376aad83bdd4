#!/bin/sh
# Where the time goes: a program that is built with marks computes the same and
# writes a profile; --emit=roofline reads it, all of its time is someone's, and
# what is wrong with a profile is told at its place. Nothing asserts a time.
. "$(dirname "$0")/../lib.sh"
cd "$work" || exit 2
NDC_CFLAGS=-O1 TMPDIR=$work
export NDC_CFLAGS TMPDIR
# expect STATUS 'TEXT of stdout or stderr' command...
expect() {
    want=$1 text=$2
    shift 2
    "$@" >out 2>&1
    got=$?
    if [ $got -ne "$want" ] || ! grep -q -F -e "$text" out; then
        fail "$*: status $got, expected $want and \"$text\""
        cat out
    fi
}

cat >m.nd <<'ND'
use nn
axis batch = 12
axis d = 5
axis ffn = 13
axis layers = 3
model m(x: f32[batch, d]) {
  repeat layers {
    x = x + linear[ffn -> d](relu(linear[d -> ffn](x) as up)) as down
  }
  return sum[batch, d](x * x)
}
train m {
  data      = synthetic
  optimizer = sgd(lr = 0.001)
  clip      = 0.5
  steps     = 4
  eval      = every(2, batches = 1)
}
plan {
  mesh     pp = 2, dp = 2, tp = 1
  shard    batch -> dp, ffn -> tp
  pipeline layers -> pp, microbatches = 3
}
ND

# Two devices, collectives in flight, microbatches, evaluation between steps.
mesh="--mesh pp=2,dp=1,tp=2"
build() { "$ndc" m.nd $mesh "$@" 2>err || { cat err; exit 1; }; }
build -o plain
build --marks -o marked
grep -q ndrt_mark plain.c && fail "a normal program has marks"
./plain --log plain.log >/dev/null 2>&1
./marked --log marked.log --profile run.json >/dev/null 2>err || {
    fail "the run"
    cat err
}
cut -d, -f1-3 plain.log >a
cut -d, -f1-3 marked.log >b
cmp -s a b || fail "marks change what is computed"
grep -q 'weights .* temporary .* inputs and saved' err ||
    fail "no arena by category"

# Each kernel is in the table of the compiler and has been called, as often.
build --emit=kernels -o kernels
build --emit=roofline --profile run.json -o roof
awk '
FILENAME == "kernels" && $1 == "kernel" { on = 1; next }
FILENAME == "kernels" && !NF { on = 0 }
FILENAME == "kernels" && on && $2 != "gradients" && $2 != "norm" &&
    $1 != "update" { known[$1] = $4; n++ }
FILENAME == "roof" && /%/ && $1 ~ /%$/ && NF > 5 && $2 ~ /^[0-9]+$/ {
    share += $1
    for (i = 1; i <= NF; i++)
        if ($i in known) {
            found[$i]++
            if ($2 != 2 * known[$i])
                print $i ": " $2 " calls, expected " 2 * known[$i]
        }
}
END {
    for (k in known)
        if (found[k] != 1)
            print k ": " found[k] + 0 " times in the roofline"
    if (n < 10)
        print "only " n " kernels"
    if (share < 98 || share > 102)
        print "shares add up to " share
}' kernels roof >wrong
[ -s wrong ] && {
    fail "the roofline"
    cat wrong kernels roof
}
for part in update 'gradient norm' 'zero gradients' data log \
    'messages and waiting' 'sums of all ranks' 'between kernels'; do
    grep -q "$part" roof || fail "no $part"
done
grep -q 'memory *update' roof || fail "the update has no limit"

# All in one.
expect 0 'a step took' "$ndc" roofline m.nd --mesh pp=1,dp=1,tp=1 --steps 2 \
    --threads 1 --profile kept.json
[ -s kept.json ] || fail "the profile was not kept"
expect 0 'arena' "$ndc" roofline m.nd --mesh pp=1,dp=1,tp=1 --steps 2 \
    --cpu=native --kernels=c -o text -- --log run.log --seed 3
grep -q 'a step took' text && [ -s run.log ] || fail "the run was not told its options"
expect 2 'knows no such processor' "$ndc" roofline m.nd --cpu=hexium
expect 2 'kernels are made by `c` or by' "$ndc" roofline m.nd --kernels=d
expect 1 'does not divide' "$ndc" roofline m.nd --require-even --set batch=7
expect 1 'unknown option "--sed"' "$ndc" roofline m.nd --steps 2 -- --sed 3
expect 2 'unknown option `--seed`' "$ndc" roofline m.nd --seed 3
ls -d ndc-roofline* 2>/dev/null && fail "a folder is left"
expect 1 'is not a number of that kind' "$ndc" roofline m.nd --steps few
expect 1 'a size is a positive integer' "$ndc" roofline m.nd --set batch=0
expect 2 'no input file' "$ndc" roofline

# What does not go together.
expect 2 'this program was built without marks' ./plain --profile x.json
expect 2 'the run has no step' ./marked --steps 0 --profile x.json
expect 2 '--profile goes with --emit=roofline only' "$ndc" m.nd --profile run.json
expect 2 '--emit=roofline needs --profile FILE' "$ndc" m.nd --emit=roofline
expect 2 '--marks goes with an executable' "$ndc" m.nd --emit=ir --marks

# Wrong profiles.
bad() {
    text=$1
    expect 1 "$text" "$ndc" m.nd $mesh --emit=roofline --profile bad.json
}
expect 1 'cannot read `none.json`: No such file' "$ndc" m.nd $mesh \
    --emit=roofline --profile none.json
expect 1 'run.json:1:26: error: this is a profile of another `m`' "$ndc" m.nd \
    --emit=roofline --profile run.json
expect 1 'run.json:1:26: error: this is a profile of another `m`' "$ndc" m.nd \
    $mesh --set d=6 --emit=roofline --profile run.json
sed 's/"program": "m"/"program": "gpt"/' run.json >bad.json
bad 'bad.json:1:14: error: this is a profile of `gpt`; the program is `m`'
sed 's/layers_up_y"/layers_up_yy"/' run.json >bad.json
bad 'no kernel is called `layers_up_yy`; did you mean `layers_up_y`?'
grep -v '"layers_up_y"' run.json >bad.json
bad 'kernels of `m`'
sed 's/"steps"/"stepz"/' run.json >bad.json
bad 'a profile has no `stepz`'
sed 's/"copy": [0-9]*/"copy": -3/' run.json >bad.json
bad 'bad.json:3:10: error: expected a number that is not negative'
sed 's/"copy": [0-9]*,//' run.json >bad.json
bad 'the profile says nothing of `copy`'
head -c 300 run.json >bad.json
bad 'error: expected'
: >bad.json
bad 'expected `{`'
echo '}' >>run.json
expect 1 'expected the end of the file' "$ndc" m.nd $mesh --emit=roofline \
    --profile run.json

[ $failed -eq 0 ] || exit 1
echo "roofline: ok"
