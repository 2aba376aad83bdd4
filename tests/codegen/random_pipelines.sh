#!/bin/sh
# random_pipelines.sh [FROM TO] - random models under random pipelines against
# the same microbatches on one device: random_pipelines.py. Loops are not made
# into vectors: what is one loop on a device may be two on two stages, and gcc
# adds up in another order where it can make only one of them a vector's.
set -u
command -v python3 >/dev/null || exit 77
case ${NDC_HAVE:-} in *sanitize*) exit 77 ;; esac
here=$(cd "$(dirname "$0")" && pwd)
to=12 mpi=''
[ -z "${NDC_LONG:-}" ] || to=200
case ${NDC_HAVE:-} in *mpi*) mpi=--mpi ;; esac
optimize=-Og
[ -z "${NDC_LONG:-}" ] || optimize=-O1
export NDC_CFLAGS="$optimize -fno-openmp-simd -fno-tree-vectorize"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec python3 "$here/random_pipelines.py" --ndc "$NDC_BUILD/ndc" $mpi "${1:-1}" "${2:-$to}"
