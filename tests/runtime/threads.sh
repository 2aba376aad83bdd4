# threads.sh - the threads of a rank: the banner tells them, and however many
# there are, losses and weights are the same bits, as they are between ranks as
# threads and as processes. A failure in one thread ends all.
ndc=$NDC_BUILD/ndc
[ -x "$ndc" ] || exit 77
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
bad=0

fail() {
    echo "FAIL: $*"
    bad=1
}

cat examples/*.nd README.md >"$dir/text"
run() {
    out=$1
    shift
    timeout 100 "$@" --data "$dir/text" --steps 2 --save "$dir/$out" \
        --log "$dir/log" >"$dir/out" 2>"$dir/err" || fail "$*"
    sed 's/,"tokens_per.*//' "$dir/log" >"$dir/$out.loss"
}
same() {
    cmp "$dir/$1" "$dir/$2" && cmp "$dir/$1.loss" "$dir/$2.loss" || fail "$3"
}

# Odd sizes: products of 305 x 78, 305 x 256, 78 x 312 are cut unevenly.
"$ndc" examples/gpt.nd --set batch=5 --set layers=2 --set seq=61 --set d=78 \
    --set heads=3 --mesh dp=1 -o "$dir/gpt" 2>/dev/null || fail "ndc gpt"
sed 's/^train.*{/& precision = bf16/' examples/moe.nd >"$dir/moe.nd"
"$ndc" "$dir/moe.nd" --set batch=6 --set seq=61 --set d=56 --mesh dp=1,ep=2 \
    -o "$dir/moe" 2>/dev/null || fail "ndc moe"
for program in gpt moe; do
    run one "$dir/$program" --threads 1
    grep -q 'per rank$' "$dir/err" && fail "one thread per rank is told"
    for n in 2 3; do
        run $n "$dir/$program" --threads $n
        grep -q ", $n threads per rank\$" "$dir/err" || fail "$n are not told"
        same one $n "$program differs for $n threads"
    done
done
run late env NDRT_JITTER=300 "$dir/moe" --threads 3
same one late "threads that come late"

# The 4th call of rank 1 fails while its other threads wait.
NDRT_FAIL_AT=1:4 timeout 100 "$dir/moe" --threads 2 --data "$dir/text" \
    >"$dir/out" 2>"$dir/err"
[ $? -eq 3 ] || fail "status of a failure"
grep -q 'rank 1: made-up failure' "$dir/err" || fail "text of a failure"

case " ${NDC_HAVE:-} " in
*" sanitize "*) ;;
*" mpi "*)
    run mpi mpirun --oversubscribe -n 2 "$dir/moe" --threads 2
    grep -q ', 2 threads per rank$' "$dir/err" || fail "nor by a process"
    same one mpi "processes differ"
    ;;
esac
exit $bad
