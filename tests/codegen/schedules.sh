#!/bin/sh
# Every schedule at run time, with few microbatches and many, against one device:
# schedules.py. With NDC_LONG all of 2 to 8 devices, 1 to 16 microbatches and 1
# to 3 stages per device; else some.
set -u
command -v python3 >/dev/null || exit 77
case ${NDC_HAVE:-} in *sanitize*) exit 77 ;; esac
here=$(cd "$(dirname "$0")" && pwd)
all='' mpi=--no-mpi
export NDC_CFLAGS=-Og
[ -z "${NDC_LONG:-}" ] || { all=--all NDC_CFLAGS=-O1; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
case ${NDC_HAVE:-} in *mpi*) mpi='' ;; esac
exec python3 "$here/schedules.py" --ndc "$NDC_BUILD/ndc" $all $mpi "$@"
