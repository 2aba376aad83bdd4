# messages.sh - messages of a pipeline: the same weights, bit for bit, the same
# counts and the same evaluation whether they move on a thread of their own or
# between computations, as threads and under mpirun, however late each action
# begins; failures end all ranks; --trace and --times tell what ran.
. "$(dirname "$0")/../lib.sh"
[ -x "$ndc" ] || exit 77
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
[ -n "${NDC_LONG:-}" ] || export NDC_CFLAGS=-Og

run() { # OUT COMMAND...
    out=$1
    shift
    timeout 100 "$@" --steps 3 --save "$work/$out" --comm "$work/$out.comm" \
        --log "$work/$out.log" --generate an --tokens 5 --temperature 0 \
        >"$work/$out.text" 2>"$work/err" </dev/null || {
        cat "$work/err"
        fail "$out: $*"
    }
    sed 's/,"tokens_per_s.*//' "$work/$out.log" >"$work/$out.lines"
    grep -v '^step\|^eval' "$work/$out.text" >"$work/$out.generated"
}

same() { # OUT: as `inline`
    for what in '' .comm .lines .generated; do
        cmp "$work/inline$what" "$work/$1$what" ||
            fail "$name: $1$what differs"
    done
}

# A line: name, ranks, mesh, rules, pipeline, what else the plan has after `;`.
while IFS='|' read -r name n mesh rules pipeline more; do
    printf 'plan {\n  mesh %s\n%s\n  pipeline layers -> pp, %s\n%s\n}\n' \
        "$mesh" "$rules" "$pipeline" "$more" | tr ';' '\n' >"$work/plan"
    sed -e '/^plan/,$d' -e 's/^  steps .*/&\n  eval = every(2)/' \
        -e 's/^  data .*/  data = synthetic/' \
        "$NDC_SOURCE/tests/cases/g.nd" >"$work/g.nd"
    "$ndc" "$work/g.nd" --plan "$work/plan" --set batch=7 --set seq=12 \
        --set layers=5 -o "$work/g" 2>"$work/err" || {
        cat "$work/err"
        fail "$name"
        continue
    }
    run inline "$work/g" --messages inline
    run ahead "$work/g"
    same ahead
    run late env NDRT_JITTER=2000 "$work/g"
    same late
    case "$n ${NDC_HAVE:-} " in
    *" sanitize "*) ;;
    *" mpi "*)
        run mpi env NDRT_JITTER=1000 mpirun --oversubscribe -n "$n" "$work/g"
        same mpi
        ;;
    esac
done <<'END'
1f1b|2|pp = 2||schedule = 1f1b, microbatches = 3|
halves|2|pp = 2||schedule = zb_h1, microbatches = 3|
two stages each|2|pp = 2||schedule = interleaved(2), microbatches = 2|
there and back|4|pp = 2, dp = 2|  shard batch -> dp|schedule = zb_v, microbatches = 3|
gpipe|3|pp = 3||schedule = gpipe, microbatches = 4|
more ranks|4|pp = 2, dp = 2|  shard batch -> dp|schedule = 1f1b, microbatches = 3|  zero 3 over dp
END

# The last program. Both threads of a rank count their calls.
for at in 1:3 3:9 0:40; do
    NDRT_FAIL_AT=$at NDRT_JITTER=1000 timeout 60 "$work/g" --steps 3 \
        >"$work/out" 2>&1
    got=$?
    [ $got = 3 ] || fail "status $got, expected 3: $at"
    [ "$(grep -c "rank ${at%:*}: made-up failure" "$work/out")" = 1 ] ||
        fail "not told: $at"
    [ "$(grep -c 'error:' "$work/out")" = 1 ] || fail "not one line: $at"
done

"$work/g" --steps 4 --trace "$work/trace" --trace-step 2 --times "$work/times" \
    >"$work/out" 2>&1 || fail "--trace"
[ "$(grep -c 'SEND_F' "$work/trace")" -ge 3 ] || fail "no messages in the trace"
[ "$(grep -c '[1-9]' "$work/times")" = 2 ] || fail "not a line for each stage"
"$ndc" schedule gpipe --ranks 2 --microbatches 4 --times "$work/times" \
    >"$work/out" 2>&1 || fail "the compiler does not read the times"
"$work/g" --steps 4 --trace "$work/trace" --trace-step 5 >"$work/out" 2>&1
[ $? = 2 ] || fail "--trace-step 5 of 4"
grep -q 'the run has steps 1 to 4' "$work/out" || fail "which steps there are"
# The notes of a step are not those of the evaluation before it.
"$work/g" --steps 3 --micro-losses >"$work/out" 2>&1 || fail "--micro-losses"
awk '$1 == "step" && $3 == "loss" { loss = $4 }
     $1 " " $2 " " $3 == "step 3 microbatch" { sum += $6; n++ }
     END { exit !(n == 3 && sum - loss < 1e-4 && loss - sum < 1e-4) }' \
    "$work/out" || {
    cat "$work/out"
    fail "losses of microbatches do not add up"
}
"$work/g" --messages maybe >"$work/out" 2>&1
[ $? = 2 ] || fail "--messages maybe"
grep -q 'neither ahead nor inline' "$work/out" || fail "what --messages takes"
[ $failed = 0 ]
