#!/bin/sh
# Context parallelism in every form: the graph after all passes, on simulated
# ranks, equals the source in f64 to 1e-9 after each pass; and so many
# collectives are run as the form says.
#
# context.txt: program [options]|mesh|rules|further plan lines|collectives ("" any)
set -u
tool=$NDC_BUILD/tests/nd_eval
here=$NDC_SOURCE/tests/eval
plan=$(mktemp)
trap 'rm -f "$plan"' EXIT
failed=0 count=0

bad() {
    failed=$((failed + 1))
    printf 'FAILED: %s\n' "$*"
}

while IFS='|' read -r name mesh rules more want; do
    count=$((count + 1))
    { printf 'plan {\n  mesh %s\n  shard %s\n' "$mesh" "$rules"
      printf '%s\n}\n' "$more" | tr ';' '\n'; } >"$plan"
    line="$name $mesh $rules $more"
    file=$here/context/${name%% *}.nd sizes=${name#"${name%% *}"}
    out=$("$tool" --compare --each --plan="$plan" $sizes "$file" 2>&1) || {
        bad "$line: $out"
        continue
    }
    [ "$want" ] || continue
    have=$("$tool" --passes=all --plan="$plan" $sizes "$file" 2>/dev/null |
        sed -n 's/^collective //p' | sort | tr '\n' ',' |
        sed 's/,$//; s/,/, /g')
    [ "$have" = "$want" ] || bad "$line: $have instead of $want"
done <"$here/context.txt"
echo "$((count - failed)) passed, $failed failed"
[ $failed = 0 ]
