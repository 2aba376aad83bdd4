#!/bin/sh
# reference.sh [--bless] - every example of frontend/language.md and of the pages
# about plans, frontend/parallel/*.md, is compiled and evaluated, and says what
# stands below it. --bless writes what it says now.
command -v python3 >/dev/null || exit 77
here=$(cd "$(dirname "$0")" && pwd)
source=${NDC_SOURCE:-$here/../..}
exec python3 "$here/reference.py" --ndc "${NDC_BUILD:-$source/build}/ndc" \
    "$@" "$source/frontend/language.md" "$source"/frontend/parallel/*.md
