#!/bin/sh
# The models of tests/fixtures on many meshes, as threads and as processes, three
# steps each against one rank: mesh_sweep.py. With NDC_LONG every model on every
# mesh; else each mesh with one model, every second one as processes. Sanitized
# programs take too long here.
set -u
command -v python3 >/dev/null || exit 77
case ${NDC_HAVE:-} in *sanitize*) exit 77 ;; esac
here=$(cd "$(dirname "$0")" && pwd)
all='' mpi=--no-mpi
[ -z "${NDC_LONG:-}" ] || all=--all
[ -n "${NDC_LONG:-}" ] || export NDC_CFLAGS=-Og
case ${NDC_HAVE:-} in *mpi*) mpi='' ;; esac
exec python3 "$here/mesh_sweep.py" --ndc "$NDC_BUILD/ndc" $all $mpi "$@"
