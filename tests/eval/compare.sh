#!/bin/sh
# The evaluator on the final per-rank program equals the evaluator on the source
# graph, in f64 to 1e-9: every pass test, and gpt and wave at toy sizes on many
# meshes. This is what each pass promises.
set -u
tool=$NDC_BUILD/tests/nd_eval
plan=$(mktemp)
trap 'rm -f "$plan"' EXIT
failed=0 count=0

check() {
    count=$((count + 1))
    if ! out=$("$tool" --compare "$@" 2>&1); then
        failed=$((failed + 1))
        printf 'FAILED: nd_eval --compare %s\n%s\n' "$*" "$out"
    fi
}

for f in "$NDC_SOURCE"/tests/passes/*/*.nd "$NDC_SOURCE"/tests/passes/*/*.ndir \
    "$NDC_SOURCE"/tests/regress/*.nd "$NDC_SOURCE"/examples/wave.nd; do
    grep -q 'ERROR' "$f" || check "$f"
done

toy="--set batch=6 --set seq=5 --set vocab=13 --set d=12 --set heads=3 --set layers=4"
# meshes.txt: mesh|rules|further plan entry
while IFS='|' read -r mesh rules more; do
    printf 'plan {\n  mesh %s\n  %s\n  %s\n}\n' "$mesh" "$rules" "$more" > "$plan"
    check --plan="$plan" $toy "$NDC_SOURCE/examples/gpt.nd"
done < "$NDC_SOURCE/tests/eval/meshes.txt"

for f in g g3 gdrop u; do
    for mesh in 'tp = 2|vocab -> tp, seq -> tp' 'dp = 3|batch -> dp' \
        'dp = 2, tp = 3|batch -> dp, vocab -> tp'; do
        printf 'plan {\n  mesh %s\n  shard %s\n  microbatches 2\n}\n' \
            "${mesh%|*}" "${mesh#*|}" > "$plan"
        check --plan="$plan" --set seq=5 "$NDC_SOURCE/tests/cases/$f.nd"
    done
done
echo "$((count - failed)) passed, $failed failed"
[ $failed = 0 ]
