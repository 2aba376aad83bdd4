#!/bin/sh
# Thousands of lines: compiling them to C takes time near linear in their
# number, and so do the lines of C: no kernel starts a chain anew. The limits are
# some ten times the seconds that it takes the processor.
. "$(dirname "$0")/../lib.sh"

model() { # LINE COUNT; N stands for the number of the repetition
    echo 'use nn'
    echo 'axis batch = 4'
    echo 'axis a = 3'
    echo 'model m(x: f32[batch, a]) {'
    echo '  w = param [a] ~ ones'
    echo '  h = x * w'
    awk -v line="$1" -v count="$2" 'BEGIN {
        for (i = 1; i <= count; i++) {
            s = line
            gsub(/N/, i, s)
            print s
        } }'
    echo '  return mean[batch, a](h)'
    echo '}'
}

compile() { # NAME LINE SECONDS
    for count in 500 1000; do
        model "$2" $count > "$work/$1.nd"
        (ulimit -t "$3" && "$ndc" "$work/$1.nd" --emit=c > "$work/$count.c") ||
            fail "$1: status $?"
    done
    half=$(wc -l < "$work/500.c")
    whole=$(wc -l < "$work/1000.c")
    [ "$whole" -le $((half * 21 / 10)) ] ||
        fail "$1: $half lines of C for 500 repetitions, $whole for 1000"
}

limit=5
case " $NDC_HAVE " in *" sanitize "*) limit=60 ;; esac
compile elementwise '  h = sin(h)' $limit
compile reductions '  h = exp(h) * 0.001 + sum[a](h) * 0.0001' $limit
compile parameters "  pN = param [a] ~ ones
  h = h * pN" $limit
compile residual "  pN = param [a] ~ ones
  h = h + gelu(rmsnorm[a](h) * pN)" $limit
compile gates '  h = dropout(h, 0.1) * h * mean[batch, a](h)' $limit
compile products '  h = sin(linear[a -> a](h) as lN)' $((4 * limit))
[ $failed = 0 ]
