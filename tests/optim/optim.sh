#!/bin/sh
# Five steps of every optimizer, by generated programs, equal the published
# updates to 1e-6: lion and muon on meshes that cut the batch, the matrices,
# lists of matrices and the optimizer state.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 "$NDC_SOURCE/tests/optim/optim.py" train "$NDC_BUILD/ndc" "$work"
