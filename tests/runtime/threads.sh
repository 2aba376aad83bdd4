# threads.sh - threads for matrix products: the banner tells them, and ranks as
# threads and as processes give the same bits with the same number of them.
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

"$ndc" examples/gpt.nd --set batch=4 --set layers=2 --set seq=64 \
    --mesh pp=1,dp=2,tp=1 -o "$dir/two" 2>/dev/null || fail ndc
cat examples/*.nd README.md >"$dir/text"
run() {
    out=$1
    shift
    timeout 100 "$@" --data "$dir/text" --steps 2 --save "$dir/$out" \
        >"$dir/out" 2>"$dir/err" || fail "$*"
}
run one "$dir/two" --threads 1
grep -q 'per rank$' "$dir/err" && fail "one thread per rank is told"
run local "$dir/two" --threads 2
grep -q ', 2 threads per rank$' "$dir/err" || fail "two threads are not told"
run again "$dir/two" --threads 2
cmp "$dir/local" "$dir/again" || fail "two runs differ"
case " ${NDC_HAVE:-} " in
*" sanitize "*) ;;
*" mpi "*)
    run mpi mpirun --oversubscribe -n 2 "$dir/two" --threads 2
    grep -q ', 2 threads per rank$' "$dir/err" || fail "nor by a process"
    cmp "$dir/local" "$dir/mpi" || fail "processes differ, 2 threads"
    run mpi1 mpirun --oversubscribe -n 2 "$dir/two" --threads 1
    cmp "$dir/one" "$dir/mpi1" || fail "processes differ, 1 thread"
    ;;
esac
exit $bad
