#!/bin/sh
# The bounds of tiles are as near as they can be, and no nearer. In the program
# of four masks each bound of each kernel moves by an element and by a block: a
# tile that leaves out what its mask lets through gives other weights after a
# step; one that computes more than it must, which is an equivalent, the same.
. "$(dirname "$0")/../lib.sh"
cd "$work" || exit 2

# Causal, a window, causal with an offset, and keys that are more than queries.
cat >m.nd <<'END'
axis batch = 2
axis seq = 150
axis k0 = seq
axis k1 = seq
axis k2 = seq
axis k3 = 201
axis head = 5
use nn
fn look[kv](x, y, sees) {
  p = softmax[kv](where(sees, sum[head](x * y), -inf))
  return mean[batch, seq, head](sum[kv](p * y) * x)
}
model m(x: f32[batch, seq, head], y: f32[batch, k3, head]) {
  w0 = param [head] ~ normal(0.5)
  w1 = param [head] ~ normal(0.5)
  w2 = param [head] ~ normal(0.5)
  w3 = param [head] ~ normal(0.5)
  x0 = x * w0
  x1 = x * w1
  x2 = x * w2
  s0 = look[k0](x0, rename[seq -> k0](x0), index[k0] <= index[seq])
  s1 = look[k1](x1, rename[seq -> k1](x1), abs(index[seq] - index[k1]) < 37)
  s2 = look[k2](x2, rename[seq -> k2](x2), index[k2] + 9 <= index[seq] + 12)
  s3 = look[k3](x * w3, y * w3, index[k3] <= index[seq] + 51)
  return s0 + s1 + s2 + s3
}
train m {
  data      = synthetic
  optimizer = sgd(lr = 10.0)
}
END

# The C compiler gets a text in which each bound has a number, and moves by what
# the environment says. `sites`: o for where tiles begin, n for where they end.
real=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$NDC_BUILD/CMakeCache.txt")
cat >move.awk <<'END'
{ text = text $0 "\n" }
END {
    print "#include <stdint.h>\n#include <stdlib.h>"
    print "static int64_t moved(int site)\n{"
    print "    const char *at = getenv(\"SITE\"), *by = getenv(\"BY\");"
    print "    return at && by && atoi(at) == site ? atoi(by) : 0;\n}"
    while (match(text, /[on]_k[0-9]_tile =[ \n]*ndrt_clip\([^,]*/)) {
        site = substr(text, RSTART, 1)
        printf "%s + moved(%d)", substr(text, 1, RSTART + RLENGTH - 1), n++
        text = substr(text, RSTART + RLENGTH)
        print site >"sites"
    }
    printf "%s", text
}
END
cat >cc <<END
#!/bin/sh
for f in "\$@"; do
    case \$f in *.c)
        awk -f move.awk "\$f" >moved.c
        mv moved.c "\$f" ;;
    esac
done
exec "$real" "\$@"
END
chmod +x cc
NDC_CFLAGS=-O1 CC=$work/cc "$NDC_BUILD/ndc" m.nd -o m || exit 1
# Forward and backward: 2 of the window's begins, 8 ends.
[ "$(sort sites | uniq -c | tr -s ' \n' ' ')" = " 8 n 2 o " ] || {
    fail "other bounds than expected"
    cat sites
}

# weights SITE BY: after one step, as text
weights() {
    SITE=$1 BY=$2 ./m --steps 1 --threads 1 --save w >log 2>&1 || cat log
    od -An -v -t f4 w
}

# same A B: by less than what the order of sums makes of them?
same() {
    paste -d ' ' "$1" "$2" | awk '{
        for (i = 1; i <= NF / 2; i++) {
            a = $i
            b = $(i + NF / 2)
            if (a == b) continue
            if (a b ~ /[a-z]{3}/) exit 1
            d = a - b
            if (d * d > 1e-10 * (1e-4 + a * a)) exit 1
        } }'
}

weights -1 0 >right
site=0
while read -r kind; do
    for by in -64 -1 1 64; do
        weights $site $by >moved
        case $kind$by in o-* | n[0-9]*) wider=yes ;; *) wider=no ;; esac
        if same right moved; then
            [ $wider = yes ] || fail "nobody sees bound $site moved by $by"
        else
            [ $wider = no ] || fail "bound $site moved by $by is no equivalent"
        fi
    done
    site=$((site + 1))
done <sites
[ $failed -eq 0 ] || exit 1
echo "$((site * 2)) mutants found, $((site * 2)) equivalents"
