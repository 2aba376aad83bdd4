#!/bin/sh
# The text is the same for 6 and for 96 layers but for numbers, the same every
# time, and compiles without a warning with gcc and clang.
. "$(dirname "$0")/../lib.sh"
optimize=-O1
[ -z "${NDC_LONG:-}" ] || optimize=-O2

gpt=$NDC_SOURCE/examples/gpt.nd
"$ndc" "$gpt" --emit=c > "$work/a.c" || fail "no C text"
"$ndc" "$gpt" --emit=c > "$work/b.c"
cmp "$work/a.c" "$work/b.c" || fail "two compilations differ"
"$ndc" "$gpt" --set layers=96 --emit=c > "$work/deep.c"
for f in a deep; do
    sed 's/[0-9][0-9]*/N/g' "$work/$f.c" > "$work/$f.txt"
done
cmp "$work/a.txt" "$work/deep.txt" || fail "the text depends on the depth"

compile() {
    for cc in gcc clang; do
        command -v $cc > /dev/null || continue
        $cc -std=c11 -Wall -Wextra -Werror $optimize -fopenmp-simd -fno-math-errno \
            -fno-trapping-math -I"$NDC_SOURCE/runtime" -c "$work/p.c" \
            -o "$work/p.o" || fail "$cc: $*"
    done
}

for mesh in 'dp = 1|' 'dp = 3|shard batch -> dp' \
    'tp = 5|shard heads -> tp, ffn -> tp, vocab -> tp, seq -> tp' \
    'tp = 2|shard d -> tp'; do
    printf 'plan {\n  mesh %s\n  %s\n}\n' "${mesh%|*}" "${mesh#*|}" \
        > "$work/plan"
    "$ndc" "$gpt" --set batch=6 --set seq=5 --set heads=3 --plan "$work/plan" \
        --emit=c > "$work/p.c" && compile "gpt $mesh"
done
for f in "$NDC_SOURCE"/tests/codegen/diff/*.nd \
    "$NDC_SOURCE"/tests/codegen/narrow/*.nd; do
    printf 'plan {\n  mesh x = 2, y = 3\n  shard a -> (x, y), batch -> y\n}\n' \
        > "$work/plan"
    "$ndc" "$f" --plan "$work/plan" --emit=c > "$work/p.c" && compile "$f"
done
[ $failed = 0 ]
