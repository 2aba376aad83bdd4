# perf_notes.sh - data, tensor and sequence parallelism, pipelines and sharded
# state move what they must: no note on any mesh of tests/eval/meshes.txt.
ndc=$NDC_BUILD/ndc
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
bad=0
while IFS='|' read -r mesh rules more; do
    printf 'plan {\n  mesh %s\n  %s\n  %s\n}\n' "$mesh" "$rules" "$more" \
        >"$dir/plan"
    for model in gpt llama moe; do
        "$ndc" "$NDC_SOURCE/examples/$model.nd" --plan="$dir/plan" \
            --emit=spmd >/dev/null 2>"$dir/err"
        if grep -q 'per rank and step' "$dir/err"; then
            echo "FAIL: $model on $mesh, $rules"
            cat "$dir/err"
            bad=1
        fi
    done
done <"$NDC_SOURCE/tests/eval/meshes.txt"
exit $bad
