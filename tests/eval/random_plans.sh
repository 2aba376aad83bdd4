#!/bin/sh
# random_plans.sh [--pipelines] [SEED | FROM TO | FROM forever] - random programs and the models
# of tests/fixtures under random plans (tests/tools: nd_random, nd_plans): the
# evaluator on all ranks equals the evaluator on one device, in f64; for every
# fifth seed also the generated program. A plan may be refused, with an error that
# says where; most must not be, without --pipelines (nd_plans). What says `combine: ...` is no refusal but an op
# that the passes left ill-typed.
#
# 60 seeds, 300 with NDC_LONG, 12 with sanitizers. Of one seed it prints the
# program and the plan; with `forever` it goes on until it is stopped and prints
# the seeds that fail.
set -u
[ -n "${NDC_LONG:-}" ] || export NDC_CFLAGS=-Og
here=$(cd "$(dirname "$0")" && pwd)
source=${NDC_SOURCE:-$here/../..}
build=$(cd "${NDC_BUILD:-$source/build}" && pwd) || exit 2
bin=$build/tests
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
jobs=''
trap 'kill $jobs; exit 2' HUP INT TERM

pipelines='' most_refused=30
[ "${1:-}" != --pipelines ] || { pipelines=$1 most_refused=85; shift; }
models=$(ls "$source"/tests/fixtures/*.nd)
set_model() {                        # the K-th of them, counted round
    shift "$(($1 % ($# - 1) + 1))"
    model=$1
}

# make SEED: $work/SEED.nd and $work/SEED.plan. Two of three are random programs.
make() {
    if [ $(($1 % 3)) = 0 ]; then
        set_model $(($1 / 3)) $models
        cp "$model" "$work/$1.nd"
    else
        "$bin/nd_random" --seed "$1" >"$work/$1.nd"
    fi
    "$bin/nd_plans" --seed "$1" $pipelines "$work/$1.nd" >"$work/$1.plan"
}

# failed SEED WHAT
failed() {
    : >"$work/$1.failed"
    printf 'FAILED: random_plans.sh %s: %s\n' "$1" "$2"
    cat "$work/$1.plan" "$work/$1.out"
}

check() {
    s=$1
    make "$s"
    set=$(sed -n 's/^# \(--set .*\)/\1/p' "$work/$s.plan")
    timeout 60 "$build/ndc" --emit=c --plan "$work/$s.plan" $set \
        "$work/$s.nd" >/dev/null 2>"$work/$s.out"
    status=$?
    if [ $status = 1 ] &&
        grep -q -E '^[^ :]+:[0-9]+:[0-9]+: error: ' "$work/$s.out" &&
        ! grep -q -E 'a fault of ndc|error: [a-z_]+: ' "$work/$s.out"; then
        : >"$work/$s.refused"
    elif [ $status != 0 ]; then
        failed "$s" "ndc, status $status"
    elif ! timeout 300 "$bin/nd_eval" --compare --plan "$work/$s.plan" \
        $set "$work/$s.nd" >"$work/$s.out" 2>&1; then
        failed "$s" "nd_eval --compare"
    elif [ $((s % 5)) = 0 ] &&
        ! timeout 300 "$bin/nd_diff" --f32 --work "$work/$s" \
            --plan "$work/$s.plan" $set "$work/$s.nd" >"$work/$s.out" 2>&1; then
        failed "$s" nd_diff
    fi
}

# every FIRST TO: the seeds FIRST, FIRST + 2, ...
every() {
    s=$1
    while [ "$2" = forever ] || [ "$s" -le "$2" ]; do
        check "$s"
        rm -f "$work/$s" "$work/$s".[nsjp]*
        [ "$2" != forever ] || rm -f "$work/$s".*
        s=$((s + 2))
    done
}

from=1 to=60
[ -z "${NDC_LONG:-}" ] || to=300
case ${NDC_HAVE:-} in *sanitize*) to=12 ;; esac
if [ $# = 1 ]; then
    check "$1"
    cat "$work/$1.nd" "$work/$1.plan" "$work/$1.out"
    [ ! -e "$work/$1.failed" ]
    exit
fi
[ $# = 0 ] || from=$1 to=$2

if [ "$to" = forever ]; then
    every "$from" forever &
    jobs=$!
    every $((from + 1)) forever
fi
every "$from" "$to" >"$work/one.log" &
jobs=$!
every $((from + 1)) "$to"
wait
cat "$work/one.log"
n=$((to - from + 1))
bad=$(find "$work" -name '*.failed' | wc -l)
refused=$(find "$work" -name '*.refused' | wc -l)
echo "$n seeds: $((n - bad - refused)) agree, $bad do not," \
    "$refused plans are refused"
cat "$work"/*.out | grep 'error: ' | sed 's/.*error: //; s/`[^`]*`/`x`/g' |
    sort | uniq -c | sort -n -r
[ "$bad" = 0 ] && [ $((refused * 100)) -le $((n * most_refused)) ]
