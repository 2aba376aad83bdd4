#!/bin/sh
# The asynchronous schedules train as the papers' update rules say: weights,
# losses and norms after each of four steps, on 1 to 4 stages with 1 to 8
# microbatches, as threads and under mpirun; resumed runs to the bit.
set -eu
command -v python3 >/dev/null || exit 77
case ${NDC_HAVE:-} in *sanitize*) exit 77 ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mpi=--no-mpi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
case ${NDC_HAVE:-} in *mpi*) mpi='' ;; esac
python3 "$NDC_SOURCE/tests/optim/delayed.py" "$NDC_BUILD/ndc" "$work" $mpi
