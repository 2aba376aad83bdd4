#!/bin/sh
# test-long.sh - all tests, also those that take minutes each (tests/long): the
# example at full width on eight ranks against one.
set -eu
cd "$(dirname "$0")/.."
NDC_LONG=1 exec scripts/test.sh --all
