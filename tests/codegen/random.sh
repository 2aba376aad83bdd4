#!/bin/sh
# Random programs (tests/tools/nd_random): the evaluator on all ranks equals the
# evaluator on one device, and the generated program equals the evaluator, on
# one rank (every other seed) and on a random plan, in loss and gradients. 40
# seeds, 200 with NDC_LONG, 8 with sanitizers, under which the programs are slow
# to compile. `nd_random --seed N --plan K` prints the program of a failure.
set -u
# Half of the time is the C compiler's; the examples and the answers of PyTorch
# are for code as users get it.
case ${NDC_LONG:+long}${NDC_HAVE:-} in
long* | *sanitize*) ;;
*) export NDC_CFLAGS=-O1 ;;
esac
bin=$NDC_BUILD/tests
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
seeds=40
[ -z "${NDC_LONG:-}" ] || seeds=200
case ${NDC_HAVE:-} in *sanitize*) seeds=8 ;; esac

# failed SEED PLAN TOOL: says so, with the program.
failed() {
    : >"$work/failed.$1"
    printf 'FAILED: %s, nd_random --seed %s --plan %s\n' "$3" "$1" "$2"
    cat "$work/$1.out" "$work/$1.nd"
}

# A plan may be refused: microbatches that would change the result, a pipeline
# whose repeat is not the only one. The third has neither and is always legal.
check() {
    seed=$1 plan=0
    "$bin/nd_random" --seed "$seed" >"$work/$seed.nd"
    # Half of the seeds of each of the two workers.
    [ $((seed % 4 / 2)) = 0 ] ||
        "$bin/nd_diff" --f32 --work "$work/$seed" "$work/$seed.nd" \
            >"$work/$seed.out" 2>&1 || {
        failed "$seed" 0 nd_diff
        return
    }
    while plan=$((plan + 1)); [ $plan -le 3 ]; do
        "$bin/nd_random" --seed "$seed" --plan $plan >"$work/$seed.nd"
        "$NDC_BUILD/ndc" --emit=spmd "$work/$seed.nd" \
            >"$work/$seed.out" 2>&1 && break
        [ $? = 1 ] && [ $plan -lt 3 ] || {
            failed "$seed" $plan ndc
            return
        }
    done
    echo $plan >"$work/$seed.plan"
    "$bin/nd_eval" --compare "$work/$seed.nd" >"$work/$seed.out" 2>&1 || {
        failed "$seed" $plan "nd_eval --compare"
        return
    }
    "$bin/nd_diff" --f32 --work "$work/$seed" "$work/$seed.nd" \
        >"$work/$seed.out" 2>&1 || failed "$seed" $plan nd_diff
    rm -f "$work/$seed" "$work/$seed".*.safetensors
}

# every FIRST: the seeds FIRST, FIRST + 2, ...
every() {
    s=$1
    while [ "$s" -le $seeds ]; do
        check "$s"
        s=$((s + 2))
    done
}

"$bin/nd_random" --coverage 40 || exit 1
every 1 >"$work/one.log" &
every 2 >"$work/two.log"
wait
cat "$work/one.log" "$work/two.log"
n=$(find "$work" -name 'failed.*' | wc -l)
echo "$((seeds - n)) programs agree, $n do not; plans used:" \
    "$(cat "$work"/*.plan | sort | uniq -c | tr -s ' \n' ' ')"
[ "$n" = 0 ]
