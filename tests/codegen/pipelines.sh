#!/bin/sh
# Programs in stages of every form, as generated: loss and gradients are the
# evaluator's. An encoder and a decoder train on three ranks as on one, and a
# checkpoint of either goes on with the other.
. "$(dirname "$0")/../lib.sh"
[ -n "${NDC_LONG:-}" ] || export NDC_CFLAGS=-Og
count=0

for f in "$NDC_SOURCE"/tests/passes/pipeline/*.nd; do
    grep -q -e ERROR -e 'pp = 32' "$f" && continue
    count=$((count + 1))
    out=$("$NDC_BUILD/tests/nd_diff" --work "$work/p" "$f" 2>&1) ||
        fail "nd_diff $f: $out"
    count=$((count + 1))
    out=$("$ndc" verify "$f" 2>&1) || fail "ndc verify $f: $out"
done

cd "$work" || exit 1
sed '/^plan/,$d' "$NDC_SOURCE/tests/passes/pipeline/encoder_decoder.nd" > m.nd
cat >> m.nd <<'END'
train {
  data       = synthetic
  optimizer  = adamw(lr = 0.05)
  clip       = 0.5
  steps      = 6
  checkpoint = every(3)
}
END
for pp in 1 3; do
    printf 'plan {\n  mesh pp = %s\n  pipeline (enc, dec) -> pp, %s\n}\n' $pp \
        'microbatches = 3' > plan
    "$ndc" m.nd --plan plan -o t$pp 2>err || fail "ndc, pp = $pp: $(cat err)"
done

# Loss and norm of the last step, to six digits.
last() {
    sed -n '$s/.*"loss":\([-0-9.e]*\),"grad_norm":\([-0-9.e]*\).*/\1 \2/p' "$1" |
        awk '{ printf "%.5e %.5e\n", $1, $2 }'
}
train() {
    from=$1 log=$2
    shift 2
    count=$((count + 1))
    "./$from" --log "$log" "$@" >out 2>&1 || fail "$from $*: $(cat out)"
}
train t1 one --checkpoints c1
train t3 three --checkpoints c3
rm c1/step-6* c3/step-6*
train t3 one_three --checkpoints c1 --resume c1
train t1 three_one --checkpoints c3 --resume c3
want=$(last one)
for log in three one_three three_one; do
    count=$((count + 1))
    [ "$(last $log)" = "$want" ] || fail "$log: $(last $log), not $want"
done
echo "$((count - failed)) passed, $failed failed"
[ $failed = 0 ]
