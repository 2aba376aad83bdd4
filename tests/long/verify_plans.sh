#!/bin/sh
# ndc verify on random plans (nd_plans): each is equal to one device, or refused
# with a place in the plan or the program; or the sizes leave no gradient, as a
# vocabulary of one word does.
set -u
[ -n "${NDC_LONG:-}" ] || exit 77
source=${NDC_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
build=${NDC_BUILD:-$source/build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 equal=0 refused=0
s=1 last=${1:-100}
while [ $s -le "$last" ]; do
    for f in examples/gpt examples/moe examples/encdec tests/cases/gdrop; do
        "$build/tests/nd_plans" --seed $s "$source/$f.nd" >"$work/plan.nd"
        set -- $(sed -n '1s/^# --set/--set/p' "$work/plan.nd")
        if "$build/ndc" verify "$source/$f.nd" --plan="$work/plan.nd" "$@" \
            >"$work/out" 2>&1; then
            equal=$((equal + 1))
        elif grep -q '^[^ ]*\.nd:[0-9]*:[0-9]*: error\|nothing to compare$' \
            "$work/out" &&
            ! grep -q 'evaluation:\|fault of ndc' "$work/out"; then
            refused=$((refused + 1))
        else
            failed=$((failed + 1))
            echo "FAILED: $f, seed $s"
            tail -3 "$work/out"
        fi
    done
    s=$((s + 1))
done
echo "$equal equal, $refused refused, $failed failed"
[ $failed -eq 0 ] && [ $equal -gt $refused ]
