#!/bin/sh
# split.sh [FROM TO] - backward in two halves, for schedules that let gradients of
# weights wait, gives the same gradients as backward in one, to the last bit
# (nd_split, the evaluator on all ranks): models under the plans of splits.txt,
# then random programs in two stages, by seed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
source=${NDC_SOURCE:-$here/../..}
bin=$(cd "${NDC_BUILD:-$source/build}/tests" && pwd) || exit 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 2' HUP INT TERM
passed=0 failed=0 refused=0

# check NAME ARGUMENTS...
check() {
    name=$1
    shift
    if timeout 300 "$bin/nd_split" "$@" >"$work/out" 2>&1; then
        passed=$((passed + 1))
    elif [ "$may_refuse" = yes ] && ! grep -q 'a fault of ndc' "$work/out" &&
        grep -q -E '^[^ :]+:[0-9]+:[0-9]+: error: ' "$work/out"; then
        refused=$((refused + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED: %s: nd_split %s\n' "$name" "$*"
        cat "$work/out"
    fi
}

# splits.txt: model|sizes|mesh|further plan entries, separated by `;`
may_refuse=no
while IFS='|' read -r model sizes mesh more; do
    case $model in '' | '#'*) continue ;; esac
    printf 'plan {\n  mesh %s\n  %s\n}\n' "$mesh" "$more" | tr ';' '\n' \
        >"$work/plan"
    set=
    for size in $sizes; do
        set="$set --set $size"
    done
    check "$mesh; $more" --plan="$work/plan" $set "$source/$model"
done <"$here/splits.txt"

may_refuse=yes
from=${1:-1} to=${2:-24}
[ -z "${NDC_LONG:-}" ] || to=${2:-300}
for s in $(seq "$from" "$to"); do
    "$bin/nd_random" --seed "$s" >"$work/p.nd"
    axis=$(sed -n 's/^  repeat \([a-z_0-9]*\).*/\1/p' "$work/p.nd" | head -1)
    how=none
    [ $((s % 5)) != 0 ] || how=block
    cat >"$work/plan" <<PLAN
plan {
  mesh pp = 2
  pipeline $axis -> pp, schedule = 1f1b, microbatches = 1
  recompute $how
}
PLAN
    check "seed $s" --plan="$work/plan" "$work/p.nd"
done
echo "$passed equal, $failed not, $refused plans are refused"
[ $failed = 0 ] && [ $refused -le $(((to - from + 1) / 2)) ]
