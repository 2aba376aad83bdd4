#!/bin/sh
# Kernels that write where they read compute the same bits on 1, 2 and 3 threads,
# by the C compiler and by LLVM.
set -u
ndc=$NDC_BUILD/ndc
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
program=$NDC_SOURCE/tests/codegen/diff/in_place.nd
[ -n "${NDC_LONG:-}" ] || export NDC_CFLAGS=-O1
bad=0

"$ndc" "$program" --emit=c -o "$dir/p.c" || exit 1
# Each says so in its comment, and promises nothing of the two pointers.
for pair in 's:softmax_p' 'h:late_2' 'mul_2:mul_5'; do
    in=${pair%:*} out=${pair#*:}
    grep -q -- "-> $out .*in place of $in" "$dir/p.c" || {
        echo "FAIL: $out is not in place of $in"
        bad=1
    }
    grep -q "float \*$in[,)]" "$dir/p.c" && grep -q "float \*$out[,)]" \
        "$dir/p.c" || {
        echo "FAIL: $in or $out is called restrict"
        bad=1
    }
done
kinds=c
"$ndc" --emit=llvm "$program" -o "$dir/ir" 2>"$dir/err" && kinds='c llvm'
for k in $kinds; do
    "$ndc" "$program" --kernels=$k -o "$dir/$k" || exit 1
    for n in 1 2 3; do
        (cd "$dir" && "./$k" --steps 3 --threads $n --save "$k$n" >"$k.txt" 2>&1 &&
            cmp c1 "$k$n") || {
            echo "FAIL: kernels by $k on $n threads"
            cat "$dir/$k.txt"
            bad=1
        }
    done
done
exit $bad
