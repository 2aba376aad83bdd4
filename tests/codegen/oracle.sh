#!/bin/sh
# What the generated program computes equals what the evaluator computes on the
# source: loss and every gradient, on meshes whose sizes do not divide.
set -u
tool=$NDC_BUILD/tests/nd_diff
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 count=0

check() {
    count=$((count + 1))
    if ! out=$("$tool" --work "$work/p" "$@" 2>&1); then
        failed=$((failed + 1))
        printf 'FAILED: nd_diff %s\n%s\n%s\n' "$*" "$(cat "$work/plan")" "$out"
    fi
}

with_plan() {
    printf 'plan {\n  mesh %s\n  %s\n  %s\n}\n' "$1" "$2" "$3" > "$work/plan"
}

toy="--set batch=6 --set seq=5 --set vocab=13 --set d=12 --set heads=3 --set layers=4"
while IFS='|' read -r mesh rules more; do
    with_plan "$mesh" "$rules" "$more"
    check --plan "$work/plan" $toy "$NDC_SOURCE/examples/gpt.nd"
done <<'LIST'
dp = 1||
dp = 2|shard batch -> dp|
dp = 3|shard batch -> dp|microbatches 2
dp = 4|shard batch -> dp|zero 1 over dp
tp = 2|shard heads -> tp, ffn -> tp, vocab -> tp|
tp = 2|shard heads -> tp, ffn -> tp, vocab -> tp, seq -> tp|microbatches 3
tp = 5|shard heads -> tp, ffn -> tp, vocab -> tp, seq -> tp|recompute attention
tp = 2|shard seq -> tp|
tp = 2|shard d -> tp|
tp = 2|shard kv -> tp|
pp = 2||pipeline layers -> pp, schedule = gpipe, microbatches = 3
pp = 4||pipeline layers -> pp, schedule = 1f1b, microbatches = 2
pp = 3||pipeline layers -> pp, schedule = 1f1b, microbatches = 6, stages = [1, 1, 2]
dp = 2, tp = 2|shard batch -> dp, heads -> tp, vocab -> tp|recompute block
a = 2, b = 2|shard batch -> (a, b)|microbatches 2
a = 2, b = 2|shard heads -> a, ffn -> (a, b), vocab -> b, seq -> b|
pp = 2, dp = 2, tp = 2|shard batch -> dp, heads -> tp, ffn -> tp, vocab -> tp, seq -> tp|pipeline layers -> pp, schedule = 1f1b, microbatches = 3
LIST

for f in "$NDC_SOURCE"/tests/codegen/diff/*.nd; do
    for plan in 'x = 1||' 'x = 2|shard a -> x|' 'x = 3|shard b -> x|' \
        'x = 2, y = 2|shard batch -> x, b -> y|' \
        'x = 2, y = 3|shard a -> (x, y), batch -> y|'; do
        IFS='|' read -r mesh rules more <<END
$plan
END
        with_plan "$mesh" "$rules" "$more"
        check --plan "$work/plan" "$f"
    done
done
for f in "$NDC_SOURCE"/tests/regress/*.nd; do
    : > "$work/plan"                 # these bring their own
    check "$f"
done
echo "$((count - failed)) passed, $failed failed"
[ $failed = 0 ]
