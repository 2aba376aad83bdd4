# mpi.sh - the mini program of test_program.c as threads and under mpirun: the
# same weights and the same log, bit for bit; failures end the whole job.
# Run by ctest with NDC_BUILD and NDC_HAVE set.
. "$(dirname "$0")/../lib.sh"
case " ${NDC_HAVE:-} " in
*" mpi "*) ;;
*) exit 77 ;;
esac
case " $NDC_HAVE " in
*" sanitize "*) exit 77 ;;         # MPI's own leaks would be reported
esac
prog=$NDC_BUILD/tests/runtime_test_program
[ -x "$prog" ] || exit 77
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# same RANKS PP DP TP MICRO ZERO
same() {
    n=$1
    shift
    "$prog" run "$@" --save "$work/a" --log "$work/a.log" >/dev/null 2>&1 ||
        fail "local $*"
    for chunk in 1048576 3; do
        NDRT_CHUNK=$chunk timeout 60 mpirun --oversubscribe -n "$n" \
            "$prog" run "$@" --save "$work/b" --log "$work/b.log" \
            >/dev/null 2>&1 || fail "mpirun $*"
        cmp "$work/a" "$work/b" || fail "weights differ: $*, chunk $chunk"
        cut -d, -f1-5 "$work/a.log" >"$work/a.cut"
        cut -d, -f1-5 "$work/b.log" >"$work/b.cut"
        cmp "$work/a.cut" "$work/b.cut" || fail "logs differ: $*"
    done
}
same 1 1 1 1 1 0
same 3 1 3 1 2 1
same 5 1 1 5 2 0
same 6 2 3 1 3 1
same 8 2 2 2 3 1

# ends STATUS WORD ENV ARGS...: mpirun must end with this status and say that
ends() {
    want=$1 word=$2 env=$3
    shift 3
    env $env timeout 60 mpirun --oversubscribe "$@" >"$work/out" 2>&1
    got=$?
    [ "$got" = "$want" ] || fail "status $got, expected $want: $*"
    grep -q -e "$word" "$work/out" || fail "no \"$word\" from $*"
    [ "$(grep -c 'error:' "$work/out")" = 1 ] || fail "not one line: $*"
}
ends 2 'mpirun -n 8' A=1 -n 3 "$prog" run 2 2 2 3 1
ends 2 'did you mean "--steps"' A=1 -n 4 "$prog" run 2 2 1 1 0 --stepz 1
ends 1 'no.such.file' A=1 -n 4 "$prog" run 2 2 1 1 0 \
    --data /no.such.file.safetensors
ends 1 'step 2.*not finite' A=1 -n 4 "$prog" run 2 2 1 1 0 --lr 1e30
for at in 1:1 3:2 0:5; do
    ends 3 "rank ${at%:*}: made-up failure" NDRT_FAIL_AT=$at -n 4 \
        "$prog" run 2 2 1 3 1
done
[ $failed = 0 ]
