#!/bin/sh
# ndc fmt over every program of the tree: formatting twice changes nothing
# more, a file with errors is left alone, and our own programs are formatted.
# That the tree and all but the blanks stay the same, fmt checks itself.
set -u
ndc=$NDC_BUILD/ndc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$NDC_SOURCE" || exit 2
failed=0
n=0
tab=$(printf '\t')
fail() {
    failed=$((failed + 1))
    echo "FAILED: $*"
}

for f in $(find tests examples frontend -name '*.nd' | sort); do
    if ! "$ndc" "$f" --emit=ast >"$work/tree" 2>"$work/err"; then
        cp "$f" "$work/bad.nd"
        "$ndc" fmt "$work/bad.nd" 2>/dev/null
        [ $? -eq 1 ] || fail "$f has errors, and fmt does not exit with 1"
        cmp -s "$f" "$work/bad.nd" || fail "$f has errors and was changed"
        continue
    fi
    n=$((n + 1))
    "$ndc" fmt --stdout "$f" >"$work/once.nd" || fail "$f"
    "$ndc" fmt --check "$work/once.nd" || fail "$f: twice is not once"
    # Places differ; the nodes do not.
    "$ndc" "$work/once.nd" --emit=ast | sed 's/^[0-9:]* *//' >"$work/b"
    sed 's/^[0-9:]* *//' "$work/tree" | cmp -s - "$work/b" ||
        fail "$f: another tree"
done
[ $n -gt 100 ] || fail "only $n programs"

# Whatever the blanks were, the result is the same.
for f in examples/*.nd tests/fmt/blanks.nd; do
    sed "s/^  */$tab /; s/ = /=/g; s/, /  ,/g; s/\$/ $tab/" "$f" >"$work/ugly.nd"
    "$ndc" fmt "$work/ugly.nd" || fail "$f with other blanks"
    "$ndc" fmt --check "$work/ugly.nd" || fail "$f: twice is not once"
    grep -n "[$tab ]\$" "$work/ugly.nd" && fail "$f: blanks at the end of a line"
done

# shellcheck disable=SC2046
"$ndc" fmt --check $(find examples frontend/lib -name '*.nd') ||
    fail "run ndc fmt on these"
[ $failed -eq 0 ] && echo "ok: $n programs"
[ $failed -eq 0 ]
