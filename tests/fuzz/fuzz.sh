#!/bin/sh
# fuzz.sh TARGET - one of the fuzz targets. Built with libFuzzer (NDC_FUZZ) it
# gets $NDC_FUZZ_SECONDS (30) on new inputs, starting from all programs or graphs
# of the tree; in other builds it reads what is kept in corpus/.
set -u
target=$1
here=$NDC_SOURCE/tests/fuzz
bin=$NDC_BUILD/tests
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

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
        yield step 1e30 2147483647 '->' '..' '<=' '!=' '//' SEND_F RECV_F \
        SEND_B RECV_B UNSHARD OVERLAP_F_B; do
        echo "\"$word\""
    done
}

case $target in
fuzz_ir) corpus=$here/corpus/ir extension=ndir ;;
fuzz_sched) corpus=$here/corpus/sched extension=csv ;;
*) corpus=$here/corpus/nd extension=nd ;;
esac
if grep -q LLVMFuzzerRunDriver "$bin/$target"; then
    dictionary >"$work/words"
    find "$NDC_SOURCE" -name "*.$extension" -not -path '*/build*' \
        -size -8k >"$work/files"
    mkdir "$work/found" "$work/seeds"
    n=0
    while read -r f; do
        n=$((n + 1))
        cp "$f" "$work/seeds/$n"
    done <"$work/files"
    "$bin/$target" -dict="$work/words" -timeout=20 -rss_limit_mb=2048 \
        -max_total_time="${NDC_FUZZ_SECONDS:-30}" -max_len=4096 \
        -artifact_prefix="${NDC_FUZZ_KEEP:-$NDC_BUILD}/$target-" \
        "$work/found" "$work/seeds" "$corpus" >"$work/log" 2>&1
else
    "$bin/$target" "$corpus"/* >"$work/log" 2>&1
fi || {
    echo "FAILED: $target"
    tail -n 60 "$work/log"
    exit 1
}
tail -n 1 "$work/log"
