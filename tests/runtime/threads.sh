# threads.sh - the threads of a rank: the banner tells them, and however many
# there are, losses and weights are the same bits, as they are between ranks as
# threads and as processes. A failure in one thread ends all.
. "$(dirname "$0")/../lib.sh"
[ -x "$ndc" ] || exit 77
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

cat examples/*.nd README.md >"$work/text"
run() {
    out=$1
    shift
    timeout 100 "$@" --data "$work/text" --steps 2 --save "$work/$out" \
        --log "$work/log" >"$work/out" 2>"$work/err" || fail "$*"
    sed 's/,"tokens_per.*//' "$work/log" >"$work/$out.loss"
}
same() {
    cmp "$work/$1" "$work/$2" && cmp "$work/$1.loss" "$work/$2.loss" || fail "$3"
}

# Odd sizes: products of 305 x 78, 305 x 256, 78 x 312 are cut unevenly.
"$ndc" examples/gpt.nd --set batch=5 --set layers=2 --set seq=61 --set d=78 \
    --set heads=3 --mesh dp=1 -o "$work/gpt" 2>/dev/null || fail "ndc gpt"
sed 's/^train.*{/& precision = bf16/' examples/moe.nd >"$work/moe.nd"
"$ndc" "$work/moe.nd" --set batch=6 --set seq=61 --set d=56 --mesh dp=1,ep=2 \
    -o "$work/moe" 2>/dev/null || fail "ndc moe"
for program in gpt moe; do
    run one "$work/$program" --threads 1
    grep -q 'per rank$' "$work/err" && fail "one thread per rank is told"
    for n in 2 3; do
        run $n "$work/$program" --threads $n
        grep -q ", $n threads per rank\$" "$work/err" || fail "$n are not told"
        same one $n "$program differs for $n threads"
    done
done
run late env NDRT_JITTER=300 "$work/moe" --threads 3
same one late "threads that come late"

# The 4th call of rank 1 fails while its other threads wait.
NDRT_FAIL_AT=1:4 timeout 100 "$work/moe" --threads 2 --data "$work/text" \
    >"$work/out" 2>"$work/err"
[ $? -eq 3 ] || fail "status of a failure"
grep -q 'rank 1: made-up failure' "$work/err" || fail "text of a failure"

case " ${NDC_HAVE:-} " in
*" sanitize "*) ;;
*" mpi "*)
    run mpi mpirun --oversubscribe -n 2 "$work/moe" --threads 2
    grep -q ', 2 threads per rank$' "$work/err" || fail "nor by a process"
    same one mpi "processes differ"
    ;;
esac
[ $failed = 0 ]
