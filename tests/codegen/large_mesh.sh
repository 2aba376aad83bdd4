#!/bin/sh
# What ndc takes does not grow with the ranks: 405 billion parameters on 16,384
# ranks, and variants of that plan, become C within a second of the processor and
# little memory. Sanitizers need more of both.
. "$(dirname "$0")/../lib.sh"
model=$NDC_SOURCE/benchmarks/llama405b.nd
limit=1

case " $NDC_HAVE " in
*" sanitize "*) limit=60 ;;
*) ulimit -v 100000 ;;               # KiB
esac
ulimit -t $limit                     # seconds of each process

compile() {
    "$ndc" "$model" --emit=c "$@" >"$work/m.c" 2>"$work/err" && return
    fail "status $?: $*"
    head -5 "$work/err"
}

compile
compile --mesh pp=18,dp=56,cp=8,tp=8
compile --mesh pp=16,dp=4,cp=16,tp=64
compile --mesh pp=1,dp=65536,cp=1,tp=1 --set batch=65536 --set seq=1024
compile --mesh pp=3,dp=5,cp=7,tp=11
rules='batch -> dp, kvheads -> tp, ffn -> tp, vocab -> tp'
pipe='pipeline layers -> pp, schedule'
# mesh | rules | further entries
while IFS='|' read -r mesh more rest; do
    printf 'plan {\n  mesh %s\n  shard %s%s\n  %s\n}\n' "$mesh" "$rules" \
        "$more" "$rest" >"$work/plan"
    compile --plan "$work/plan"
done <<END
pp = 16, dp = 128, tp = 8|, seq -> tp|$pipe = 1f1b, microbatches = 16
pp = 16, dp = 128, tp = 8||$pipe = gpipe, microbatches = 16
dp = 2048, tp = 8|, d -> dp|zero 1 over dp
pp = 16, dp = 64, ep = 2, tp = 8|, d -> ep|$pipe = 1f1b, microbatches = 32
dp = 2048, tp = 8|, seq -> tp|zero 2 over dp
dp = 2048, tp = 8|, seq -> tp|zero 3 over dp
dp = 128, cp = 16, tp = 8|, seq -> (cp, tp)|context ring zigzag over cp
dp = 128, cp = 8, tp = 16|, seq -> (cp, tp)|zero 3 over dp, cp
dp = 8, a = 16, b = 16, tp = 8|, seq -> (a, b, tp)|microbatches 4
END
[ $failed = 0 ]
