#!/bin/sh
# Whatever is broken in a sharded program is found: nd_mutate on programs that
# between them have data, tensor, sequence and expert parallelism, stages,
# microbatches and ZeRO. The whole list of plans takes NDC_LONG.
set -u
source=${NDC_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
tool=${NDC_BUILD:-$source/build}/tests/nd_mutate
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
long=${NDC_LONG:+yes}

# program|mesh|rules|further plan entries, `;` between them; `long` in front:
# not always. A program is of examples/, or a path, perhaps with other sizes.
cat >"$work/plans" <<'PLANS'
wave|dp = 2, tp = 2|batch -> dp, hidden -> tp|zero 3 over dp; microbatches 2
gpt|pp = 2, dp = 2, tp = 2|batch -> dp, heads -> tp, ffn -> tp, vocab -> tp, seq -> tp|pipeline layers -> pp, schedule = 1f1b, microbatches = 2; zero 1 over dp
gpt --set layers=4|pp = 2, dp = 2|batch -> dp|pipeline layers -> pp, schedule = zb_v, microbatches = 2; zero 1 over dp
moe|dp = 2, ep = 2|batch -> (dp, ep), expert -> ep|
tests/passes/split/block|pp = 2, dp = 2|batch -> dp|pipeline layers -> pp, schedule = zb_h1, microbatches = 2; zero 1 over dp
tests/eval/context/causal --set d=12 --set head=4|cp = 3|seq -> cp|context ring over cp
long tests/eval/context/causal --set d=12 --set head=4|cp = 2, tp = 2|seq -> cp, heads -> tp|context ring zigzag over cp; zero 1 over cp
long tests/eval/context/causal --set d=12 --set head=4|cp = 3|seq -> cp|context all_to_all over cp
long tests/eval/context/causal --set d=12 --set head=4|cp = 3|seq -> cp|context gather over cp; microbatches 2
long gpt|dp = 2, tp = 2|batch -> dp, heads -> tp, ffn -> tp, vocab -> tp|zero 2 over dp; microbatches 3
long gpt|pp = 2, dp = 2|batch -> dp|pipeline layers -> pp, schedule = 1f1b, microbatches = 2; zero 3 over dp
long gpt|in = 2, out = 2|batch -> (out, in)|shard params d -> in; shard optimizer d -> out
long mlp|dp = 3|batch -> dp|
long gpt|pp = 3, dp = 2|batch -> dp|pipeline layers -> pp, schedule = gpipe, microbatches = 3
long gpt|pp = 2, tp = 2|heads -> tp, ffn -> tp, vocab -> tp, seq -> tp|pipeline layers -> pp, schedule = zb_v, microbatches = 4
long gpt|tp = 5|heads -> tp, ffn -> tp, vocab -> tp, seq -> tp|recompute attention
long gpt|a = 2, b = 2|heads -> a, ffn -> (a, b), vocab -> b, seq -> b|
long gpt|dp = 2, tp = 1|batch -> dp, heads -> tp, ffn -> tp|recompute block
long llama|pp = 2, dp = 2, tp = 2|batch -> dp, kvheads -> tp, ffn -> tp, vocab -> tp, seq -> tp|pipeline layers -> pp, schedule = 1f1b, microbatches = 3
long moe|dp = 2, ep = 3|batch -> (dp, ep), expert -> ep|microbatches 2; zero 1 over dp
long encdec|dp = 2, tp = 3|batch -> dp, heads -> tp, ffn -> tp, letter -> tp, source -> tp|
long vit|pp = 2, dp = 2|batch -> dp|pipeline layers -> pp, schedule = 1f1b, microbatches = 2
PLANS

one() {
    n=$1
    line=$(sed -n "${n}p" "$work/plans")
    [ -n "$long" ] || [ "${line#long }" = "$line" ] || return 0
    line=${line#long }
    program=${line%%|*} line=${line#*|}
    mesh=${line%%|*} line=${line#*|}
    rules=${line%%|*} more=${line#*|}
    {
        printf 'plan {\n  mesh %s\n  shard %s\n' "$mesh" "$rules"
        printf '%s\n' "$more" | tr ';' '\n'
        printf '}\n'
    } >"$work/$n.nd"
    path=${program%% *} sizes=${program#"${program%% *}"}
    [ "${path#*/}" != "$path" ] || path=examples/$path
    "$tool" "$source/$path.nd" $sizes --plan="$work/$n.nd" \
        >"$work/$n.out" 2>&1
    status=$?
    echo "$program on $mesh: $(tail -1 "$work/$n.out")"
    [ $status -eq 0 ] && return 0
    touch "$work/failed"
    grep -v ', 0 lost' "$work/$n.out"
}

# Two at a time.
count=$(wc -l <"$work/plans")
each() {
    i=$1
    while [ "$i" -le "$count" ]; do
        one "$i"
        i=$((i + 2))
    done
}
each 1 >"$work/odd" &
each 2
wait
cat "$work/odd"
# Only what is nothing but a number may be left to the simulation.
[ ! -e "$work/failed" ]
