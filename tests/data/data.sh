#!/bin/sh
# Token files of every width, with a header and without; arrays of every dtype
# in .npz files, stored and deflated; files that do not fit.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 "$NDC_SOURCE/tests/data/data.py" "$NDC_BUILD/ndc" "$work"
