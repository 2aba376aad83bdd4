#!/bin/sh
# precision = bf16, and programs that name bf16, f16 and i64: the generated
# program equals the evaluator, on meshes whose sizes do not divide, as closely
# as in f32. Both round at the same casts. A number that lies within the noise
# of a sum (1e-7) of the middle between two bf16 neighbours (2^-8) may go the
# other way, about one in 30000: hence other numbers are tried before a program
# counts as wrong, while a cast too many or too few is wrong with all of them.
. "$(dirname "$0")/../lib.sh"
# Half of the time is the C compiler's; the examples and the answers of PyTorch
# are for code as users get it.
case ${NDC_LONG:+long}${NDC_HAVE:-} in
long* | *sanitize*) ;;
*) export NDC_CFLAGS=-O1 ;;
esac
tool=$NDC_BUILD/tests/nd_diff
count=0

check() {
    count=$((count + 1))
    for seed in 1 2 3; do
        out=$("$tool" --work "$work/p" --seed $seed "$@" 2>&1) && return
    done
    fail "nd_diff $*"
    printf '%s\n' "$(cat "$work/plan")" "$out"
}

with_plan() {
    printf 'plan {\n  mesh %s\n  %s\n  %s\n}\n' "$1" "$2" "$3" > "$work/plan"
}

sed 's/seed      = 1/&\n  precision = bf16/' "$NDC_SOURCE/examples/gpt.nd" \
    > "$work/gpt.nd"
toy="--set batch=6 --set seq=5 --set vocab=13 --set d=12 --set heads=3 --set layers=4"
line=0
while IFS='|' read -r mesh rules more; do
    line=$((line + 1))               # every second one; all with NDC_LONG
    [ -n "${NDC_LONG:-}" ] || [ $((line % 2)) = 1 ] || continue
    with_plan "$mesh" "$rules" "$more"
    check --plan "$work/plan" $toy "$work/gpt.nd"
    count=$((count + 1))
    if ! out=$("$NDC_BUILD/tests/nd_eval" --compare --plan="$work/plan" $toy \
        "$work/gpt.nd" 2>&1); then
        fail "nd_eval --compare"
        printf '%s\n' "$(cat "$work/plan")" "$out"
    fi
done < "$NDC_SOURCE/tests/eval/meshes.txt"

for f in "$NDC_SOURCE"/tests/codegen/narrow/*.nd; do
    # an axis that the program must have, then the plan
    while IFS='|' read -r axis mesh rules more; do
        grep -q "^axis $axis = " "$f" || continue
        with_plan "$mesh" "$rules" "$more"
        check --plan "$work/plan" "$f"
    done <<'END'
a|x = 1||
b|x = 2|shard b -> x|
c|x = 3|shard c -> x|microbatches 2
both|x = 3|shard both -> x|microbatches 2
a|x = 2, y = 3|shard a -> (x, y), batch -> y|
layers|pp = 2, dp = 2|shard batch -> dp|pipeline layers -> pp, schedule = 1f1b, microbatches = 2
END
done
for f in "$NDC_SOURCE"/tests/passes/precision/*.nd; do
    : > "$work/plan"                 # these bring their own
    check "$f"
done
echo "$((count - failed)) passed, $failed failed"
[ $failed = 0 ]
