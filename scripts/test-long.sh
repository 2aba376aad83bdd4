#!/bin/sh
# test-long.sh - all tests, also those that take minutes each (tests/long): the
# example at full width on eight ranks against one; 200 random programs and
# 300 random plans; five models on every mesh of the sweep, all runs of the cases
# as threads and as processes; programs compiled as users get them; ten minutes
# of fuzzing for each target.
set -eu
cd "$(dirname "$0")/.."
NDC_LONG=1 NDC_FUZZ_SECONDS=600 exec scripts/test.sh --all
