#!/bin/sh
# What the generated program computes equals what the evaluator computes on the
# source: loss and every gradient, on meshes whose sizes do not divide.
. "$(dirname "$0")/../lib.sh"
# Half of the time is the C compiler's; the examples and the answers of PyTorch
# are for code as users get it. What plans do to one model, and what once went
# wrong in passes, needs less of it than the programs of diff/.
plans=-Og kernels=-O1
case ${NDC_LONG:+long}${NDC_HAVE:-} in
long*) plans='' kernels='' ;;
*sanitize*) kernels=-Og ;;
esac
export NDC_CFLAGS=$plans
tool=$NDC_BUILD/tests/nd_diff
count=0

check() {
    count=$((count + 1))
    if ! out=$("$tool" --work "$work/p" "$@" 2>&1); then
        fail "nd_diff $*"
        printf '%s\n' "$(cat "$work/plan")" "$out"
    fi
}

with_plan() {
    printf 'plan {\n  mesh %s\n  %s\n  %s\n}\n' "$1" "$2" "$3" > "$work/plan"
}

toy="--set batch=6 --set seq=5 --set vocab=13 --set d=12 --set heads=3 --set layers=4"
# meshes.txt: mesh|rules|further plan entry
while IFS='|' read -r mesh rules more; do
    with_plan "$mesh" "$rules" "$more"
    check --plan "$work/plan" $toy "$NDC_SOURCE/examples/gpt.nd"
done < "$NDC_SOURCE/tests/eval/meshes.txt"

# Each program on one rank and, unless NDC_LONG is set, on two of four meshes in
# turn.
NDC_CFLAGS=$kernels
n=0
for f in "$NDC_SOURCE"/tests/codegen/diff/*.nd; do
    n=$((n + 1)) k=0
    for plan in 'x = 1||' 'x = 2|shard a -> x|' 'x = 3|shard b -> x|' \
        'x = 2, y = 2|shard batch -> x, b -> y|' \
        'x = 2, y = 3|shard a -> (x, y), batch -> y|'; do
        k=$((k + 1))
        [ -n "${NDC_LONG:-}" ] || [ $k = 1 ] || [ $(((n + k) % 2)) = 0 ] ||
            continue
        IFS='|' read -r mesh rules more <<END
$plan
END
        with_plan "$mesh" "$rules" "$more"
        check --plan "$work/plan" "$f"
    done
done
NDC_CFLAGS=$plans
for f in "$NDC_SOURCE"/tests/regress/*.nd; do
    : > "$work/plan"                 # these bring their own
    check "$f"
done
echo "$((count - failed)) passed, $failed failed"
[ $failed = 0 ]
