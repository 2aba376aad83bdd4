#!/bin/sh
# Thousands of lines: compiling them to C takes time near linear in their
# number. The limits are some ten times the seconds that it takes the processor.
set -u
ndc=$NDC_BUILD/ndc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

compile() { # NAME LINES SECONDS; N stands for the number of the repetition
    {
        echo 'use nn'
        echo 'axis batch = 4'
        echo 'axis a = 3'
        echo 'model m(x: f32[batch, a]) {'
        echo '  w = param [a] ~ ones'
        echo '  h = x * w'
        awk -v line="$2" 'BEGIN {
            for (i = 1; i <= 1000; i++) {
                s = line
                gsub(/N/, i, s)
                print s
            } }'
        echo '  return mean[batch, a](h)'
        echo '}'
    } > "$work/$1.nd"
    (ulimit -t "$3" && "$ndc" "$work/$1.nd" --emit=c > "$work/$1.c") || {
        echo "FAILED: $1: status $?"
        failed=$((failed + 1))
    }
}

limit=5
case " $NDC_HAVE " in *" sanitize "*) limit=60 ;; esac
compile elementwise '  h = sin(h)' $limit
compile reductions '  h = exp(h) * 0.001 + sum[a](h) * 0.0001' $limit
compile parameters "  pN = param [a] ~ ones
  h = h * pN" $limit
compile products '  h = sin(linear[a -> a](h) as lN)' $((4 * limit))
exit $failed
