#!/bin/sh
# Every example trains as its header says: the short run of its line
# `# expect --steps N: loss X`, and with NDC_LONG the whole run of `# expect:`.
# --bless writes what it gets into the headers.
set -u
exec python3 "$NDC_SOURCE/tests/examples/examples.py" "$@"
