#!/bin/sh
# lint.sh - the rules of the house that a machine can check: file sizes, line
# lengths, include direction, one file per pass. Prints file:line: what is
# wrong; exits 1 if anything is.
set -u
cd "$(dirname "$0")/.." || exit 2

bad=$(mktemp) || exit 2
trap 'rm -f "$bad"' EXIT
say() { cat >>"$bad"; }

c_files() {
    find frontend ir passes codegen runtime tests \
        \( -name '*.[ch]' -o -name '*.def' \) -type f | sort
}
text_files() {
    find .ci CMakeLists.txt README.md frontend ir passes codegen runtime \
        tests scripts examples -type f \
        \( -name '*.[chly]' -o -name '*.def' -o -name '*.sh' \
        -o -name '*.nd' -o -name '*.ndir' -o -name '*.txt' \
        -o -name '*.cmake' -o -name '*.md' -o -path .ci/run \) | sort
}

# A file is one idea.
c_files | while read -r f; do
    n=$(wc -l <"$f")
    [ "$n" -le 1000 ] || echo "$f:1: $n lines, more than 1000"
done | say

# ops.def and passes.def are tables: a row may be long.
c_files | grep -v '\.def$' | while read -r f; do
    awk -v f="$f" 'length($0) > 80 {
        print f ":" FNR ": " length($0) " columns, more than 80" }' "$f"
done | say

text_files | while read -r f; do
    awk -v f="$f" '/\t/ { print f ":" FNR ": tab" }
        /[ \r]+$/ { print f ":" FNR ": space at the end of the line" }' "$f"
done | say
# The two words are put together here so that this file passes.
marks='TO''DO|FIX''ME'
text_files | xargs grep -n -E "$marks" 2>/dev/null |
    sed 's/$/   (unfinished)/' | say

# frontend -> ir <- passes <- codegen; the runtime stands alone. An include
# names a folder by path, or a file that only one folder has.
folder_of() {
    case $1 in
    *schedule/sched.h | sched.h | sched.def) echo own ;;   # shared by all
    ../*.h) case $1 in
        ../*/*) echo "$1" | sed 's|\.\./||g; s|/.*||' ;;
        *) echo own ;;               # of the folder around this one
        esac ;;
    */*) echo "$1" | sed 's|\.\./||g; s|/.*||' ;;
    ir.h | ops.def) echo ir ;;
    passes.h | passes.def) echo passes ;;
    codegen.h) echo codegen ;;
    ndrt.h | ndrt_math.h | ndrt_small.h) echo runtime ;;
    *) echo own ;;
    esac
}
for f in $(c_files | grep -v '^tests/'); do
    from=${f%%/*}
    case $f in
    frontend/main.c | frontend/ndc.c) may="ir passes codegen" ;;
    frontend/verify*.c) may="ir passes" ;;
    frontend/*) may="ir" ;;
    ir/*) may="" ;;
    passes/*) may="ir" ;;
    codegen/llvm/*) may="ir passes runtime" ;;       # how a rank is laid out
    codegen/*) may="ir passes" ;;
    *) may="" ;;
    esac
    grep -n '^ *# *include *"' "$f" |
        sed 's/^\([0-9]*\):[^"]*"\([^"]*\)".*/\1 \2/' |
        while read -r line name; do
            to=$(folder_of "$name")
            case " own $from $may " in
            *" $to "*) ;;
            *) echo "$f:$line: $from may not include \"$name\"" ;;
            esac
        done
done | say

# A pass is a file of its name and has tests.
sed -n 's/^PASS("\([a-z0-9_]*\)".*/\1/p' passes/passes.def |
    while read -r p; do
        [ -f "passes/$p.c" ] || [ -f "ir/$p.c" ] ||
            echo "passes/passes.def:1: pass $p has no passes/$p.c"
    done | say

for f in scripts/*.sh tests/run.sh tests/lint.sh .ci/run; do
    [ -x "$f" ] || echo "$f:1: not executable"
done | say

if [ -s "$bad" ]; then
    cat "$bad"
    echo "lint: $(wc -l <"$bad") findings"
    exit 1
fi
echo "lint: ok"
