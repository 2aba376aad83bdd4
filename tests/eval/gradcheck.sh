#!/bin/sh
# Accumulated gradients against central differences of the loss, in f64. Files
# whose loss depends on a stopped gradient say "no differences".
set -u
tool=$NDC_BUILD/tests/nd_eval
failed=0 count=0
check() {
    count=$((count + 1))
    if ! out=$("$tool" --gradcheck "$@" 2>&1); then
        failed=$((failed + 1))
        printf 'FAILED: nd_eval --gradcheck %s\n%s\n' "$*" "$out"
    fi
}
check --set batch=3 --set seq=5 --set vocab=11 --set d=6 --set heads=3 --set layers=2 "$NDC_SOURCE/examples/gpt.nd"
for f in g g3 gdrop; do
    check --set batch=2 --set seq=5 --set vocab=11 --set d=6 --set layers=2 "$NDC_SOURCE/tests/cases/$f.nd"
done
check "$NDC_SOURCE/tests/cases/u.nd"
for f in loops nested repeats iterations models; do
    check "$NDC_SOURCE/tests/codegen/diff/$f.nd"
done
for f in "$NDC_SOURCE"/tests/passes/*/*.nd "$NDC_SOURCE"/tests/eval/*.nd \
    "$NDC_SOURCE"/tests/regress/*.nd; do
    grep -q 'ERROR\|no differences' "$f" || check "$f"
done
echo "$((count - failed)) passed, $failed failed"
[ $failed = 0 ]
