#!/bin/sh
# The fuzz targets. Built with libFuzzer (NDC_FUZZ) each gets $NDC_FUZZ_SECONDS
# (30) on new inputs, starting from all programs and graphs of the tree; in
# other builds each reads what is kept in corpus/.
set -u
here=$NDC_SOURCE/tests/fuzz
bin=$NDC_BUILD/tests
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# Words of the two languages, from the tables that define them.
dictionary() {
    grep -o '{"[a-z]*", [A-Z]*}' "$NDC_SOURCE/frontend/lex.c" |
        sed 's/{\("[a-z]*"\).*/\1/'
    sed -n 's/^\(OP\|EW\)([A-Z_]*, \("[a-z_]*"\).*/\2/p' \
        "$NDC_SOURCE/ir/ops.def"
    sed -n 's/^fn \([a-z_]*\).*/"\1"/p' "$NDC_SOURCE/frontend/lib/nn.nd"
    for word in f32 i32 bool mean sum max min index module sample batch normal \
        zeros dropout rename cast where stop_gradient gpipe 1f1b stages \
        schedule block attention synthetic sgd adam steps lr loss carry scan \
        yield step 1e30 2147483647 '->' '..' '<=' '!=' '//'; do
        echo "\"$word\""
    done
}

# run TARGET CORPUS EXTENSION
run() {
    if grep -q LLVMFuzzerRunDriver "$bin/$1"; then
        find "$NDC_SOURCE" -name "*.$3" -not -path '*/build*' \
            -size -8k >"$work/files"
        mkdir "$work/$1" "$work/$1.seeds"
        n=0
        while read -r f; do
            n=$((n + 1))
            cp "$f" "$work/$1.seeds/$n"
        done <"$work/files"
        "$bin/$1" -dict="$work/words" -max_total_time="${NDC_FUZZ_SECONDS:-30}" \
            -timeout=20 -rss_limit_mb=2048 -max_len=4096 \
            -artifact_prefix="${NDC_FUZZ_KEEP:-$NDC_BUILD}/$1-" \
            "$work/$1" "$work/$1.seeds" "$here/corpus/$2" >"$work/log" 2>&1
    else
        "$bin/$1" "$here/corpus/$2"/* >"$work/log" 2>&1
    fi || {
        failed=1
        echo "FAILED: $1"
        tail -n 60 "$work/log"
    }
}

dictionary >"$work/words"
run fuzz_nd nd nd
run fuzz_ir ir ndir
run fuzz_all nd nd
exit $failed
