# exchange.sh - test_exchange.c under mpirun: the same checks between processes,
# also in rounds of a few bytes. Run by ctest with NDC_BUILD and NDC_HAVE set.
case " ${NDC_HAVE:-} " in
*" sanitize "*) exit 77 ;;         # MPI's own leaks would be reported
*" mpi "*) ;;
*) exit 77 ;;
esac
prog=$NDC_BUILD/tests/runtime_test_exchange
[ -x "$prog" ] || exit 77
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
bad=0
for n in 1 2 3 5; do
    for chunk in 1048576 3; do
        NDRT_CHUNK=$chunk timeout 60 mpirun --oversubscribe -n "$n" \
            "$prog" "$NDC_BUILD/libndrt_mpi.so" || {
            echo "FAIL: $n processes, chunk $chunk"
            bad=1
        }
    done
done
exit $bad
