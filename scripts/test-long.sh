#!/bin/sh
# test-long.sh - all tests with full counts: the random programs, kill-and-
# resume loops and mesh sweeps that test.sh samples. Takes about an hour.
set -eu
cd "$(dirname "$0")/.."
NDC_LONG=1 exec scripts/test.sh --all
