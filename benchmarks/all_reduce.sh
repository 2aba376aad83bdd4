#!/bin/sh
# How long an all-reduce takes between ranks that are threads, beside a plain
# memcpy of the bytes that it reads and writes on the same CPUs, and beside the
# MPI plug-in where there is mpirun: 2, 4 and 8 ranks, 4 KiB to 32 MiB. Medians of
# RUNS runs, of which one is threads and the next one processes. The machine must
# be idle.
#
#   benchmarks/all_reduce.sh [BUILD_DIR] [RUNS]
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$here/build}
runs=${2:-5}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

cd "$here/runtime"
"${CC:-cc}" -std=c11 -D_GNU_SOURCE -O3 -fno-math-errno -fno-trapping-math \
    -ffp-contract=off -I. ../benchmarks/all_reduce.c comm_local.c meeting.c \
    fold.c -o "$tmp/all_reduce" -ldl -lpthread
mpi=
[ -e "$build/libndrt_mpi.so" ] && command -v mpirun >/dev/null && mpi=yes

printf 'ranks     bytes   threads us    GB/s   memcpy us    GB/s   ratio      MPI us\n'
for n in 2 4 8; do
    i=0
    while [ $i -lt "$runs" ]; do
        "$tmp/all_reduce" $n >>"$tmp/local.$n"
        [ -z "$mpi" ] || mpirun --oversubscribe -n $n "$tmp/all_reduce" \
            "$build/libndrt_mpi.so" >>"$tmp/mpi.$n"
        i=$((i + 1))
    done
    touch "$tmp/mpi.$n"
    awk -v n=$n '
        function median(v, m,    i, j, t) {
            for (i = 2; i <= m; i++)
                for (j = i; j > 1 && v[j - 1] > v[j]; j--) {
                    t = v[j]; v[j] = v[j - 1]; v[j - 1] = t
                }
            return v[int((m + 1) / 2)]
        }
        function of(what, b,    i, v, m) {
            m = split(what[b], v, " ")
            for (i = 1; i <= m; i++)
                v[i] += 0
            return median(v, m)
        }
        FNR == 1 { file++ }
        file == 1 {
            if (!($1 in local))
                order[++k] = $1
            local[$1] = local[$1] " " $2
            plain[$1] = plain[$1] " " $3
        }
        file == 2 { mpi[$1] = mpi[$1] " " $2 }
        END {
            for (i = 1; i <= k; i++) {
                b = order[i]
                t = of(local, b)
                c = of(plain, b)
                printf "%5d %9d %12.1f %7.1f %11.1f %7.1f %7.2f %11s\n", n, b,
                    t, n * b / t / 1e3, c, n * b / c / 1e3, t / c,
                    b in mpi ? sprintf("%.1f", of(mpi, b)) : "-"
            }
        }' "$tmp/local.$n" "$tmp/mpi.$n"
done
