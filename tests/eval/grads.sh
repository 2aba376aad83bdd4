#!/bin/sh
# The gradient of every op and every function of the library, each alone, in
# every element, against central differences in f64. The list comes from ops.def
# and nn.nd: what has neither a form in tools/nd_forms.h nor a program
# grad/op_NAME.nd or grad/fn_NAME.nd fails by name.
set -u
bin=$NDC_BUILD/tests
grad=$NDC_SOURCE/tests/eval/grad
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$bin/nd_grads" --list >"$work/list" || exit 1
while read -r kind name; do
    f=$grad/${kind}_$name.nd
    if [ "$kind" = row ]; then
        f=$work/$name.nd
        "$bin/nd_grads" --row "$name" >"$f" || continue
    elif [ ! -f "$f" ]; then
        echo "FAILED: $kind $name has no tests/eval/grad/${kind}_$name.nd"
        continue
    fi
    # Is it there at all? `map` goes by its functions' names.
    case $kind in
    fn) grep -q "[^a-z_]$name[[(]" "$f" ;;
    op) [ "$name" = map ] ||
        "$NDC_BUILD/ndc" --until=experts --emit=ir "$f" 2>&1 | grep -q "= $name " ;;
    esac || {
        echo "FAILED: $f does not use $name"
        continue
    }
    "$bin/nd_eval" --gradcheck --all --seed 3 "$f" >"$work/out" 2>&1 &&
        echo "right: $kind $name" || {
        echo "FAILED: $kind $name"
        cat "$work/out"
    }
done <"$work/list" >"$work/log"

grep -v '^right: ' "$work/log"
right=$(grep -c '^right: ' "$work/log")
echo "$right of $(wc -l <"$work/list") gradients are right"
[ "$right" = "$(wc -l <"$work/list")" ]
