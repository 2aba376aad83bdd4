#!/bin/sh
# Kernels that write where they read compute the same bits on 1, 2 and 3 threads,
# by the C compiler and by LLVM.
. "$(dirname "$0")/../lib.sh"
program=$NDC_SOURCE/tests/codegen/diff/in_place.nd
[ -n "${NDC_LONG:-}" ] || export NDC_CFLAGS=-O1

"$ndc" "$program" --emit=c -o "$work/p.c" || exit 1
# Each says so in its comment, and promises nothing of the two pointers.
for pair in 's:softmax_p' 'h:late_2' 'mul_2:mul_5'; do
    in=${pair%:*} out=${pair#*:}
    grep -q -- "-> $out .*in place of $in" "$work/p.c" ||
        fail "$out is not in place of $in"
    grep -q "float \*$in[,)]" "$work/p.c" && grep -q "float \*$out[,)]" \
        "$work/p.c" || fail "$in or $out is called restrict"
done
kinds=c
"$ndc" --emit=llvm "$program" -o "$work/ir" 2>"$work/err" && kinds='c llvm'
for k in $kinds; do
    "$ndc" "$program" --kernels=$k -o "$work/$k" || exit 1
    for n in 1 2 3; do
        (cd "$work" && "./$k" --steps 3 --threads $n --save "$k$n" >"$k.txt" 2>&1 &&
            cmp c1 "$k$n") || {
            fail "kernels by $k on $n threads"
            cat "$work/$k.txt"
        }
    done
done
[ $failed = 0 ]
