#!/bin/sh
# Generated programs whose schedule lets gradients of weights wait: a step of each
# model of tests/eval/splits.txt is as the evaluator says (nd_diff), and changes
# the parameters as the same program does under 1f1b, to the last bit. Every fourth
# line; all with NDC_LONG.
. "$(dirname "$0")/../lib.sh"
[ -n "${NDC_LONG:-}" ] || export NDC_CFLAGS=-Og
tool=$NDC_BUILD/tests/nd_diff
passed=0 line=0

# run SCHEDULE: one step of $model, sizes $set, under the plan
run() {
    sed "s/schedule = 1f1b/schedule = $1/" "$work/plan" >"$work/$1.plan"
    timeout 300 "$tool" "$NDC_SOURCE/$model" --work "$work/$1" \
        --plan "$work/$1.plan" $set >"$work/$1.log" 2>&1 && return
    cat "$work/$1.log"
    return 1
}

while IFS='|' read -r model sizes mesh more; do
    case $model in '' | '#'*) continue ;; esac
    line=$((line + 1))
    [ -n "${NDC_LONG:-}" ] || [ $((line % 4)) = 1 ] || continue
    printf 'plan {\n  mesh %s\n  %s\n}\n' "$mesh" "$more" | tr ';' '\n' \
        >"$work/plan"
    set=
    for size in $sizes; do
        set="$set --set $size"
    done
    if run 1f1b && run zb_h1 &&
        cmp "$work/1f1b.out.safetensors" "$work/zb_h1.out.safetensors"; then
        passed=$((passed + 1))
    else
        fail "$model on $mesh; $more"
    fi
done <"$NDC_SOURCE/tests/eval/splits.txt"
echo "$passed equal, $failed not"
[ $failed = 0 ] && [ $passed -gt 0 ]
