#!/bin/sh
# A lost, doubled or wrong collective of context parallelism is rejected without
# running anything, a shift among them, whose type is that of its operand.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

for form in ring 'ring zigzag' all_to_all; do
    cat >"$work/plan" <<END
plan {
  mesh cp = 3
  shard seq -> cp
  context $form over cp
  recompute attention
}
END
    for what in 'drop a' 'reduce twice' 'wrong shift' 'wrong mesh'; do
        [ "$form $what" != 'all_to_all wrong shift' ] || continue
        "$NDC_BUILD/tests/nd_mutate" --plan="$work/plan" --only="$what" \
            --set seq=6 "$NDC_SOURCE/tests/eval/context/causal.nd" \
            >"$work/out" 2>&1 && ! grep -q '[1-9][0-9]* simulated' "$work/out" &&
            continue
        failed=$((failed + 1))
        echo "FAILED: $form, $what"
        tail -5 "$work/out"
    done
done
echo "$failed failed"
[ $failed = 0 ]
