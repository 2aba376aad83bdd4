# ulp.sh - the functions that kernels compute with are within 2 units in the
# last place of the true value, built as ndc builds a program, for several
# processors; and a loop with one of them has vectors and calls nothing. With
# NDC_LONG, all 2^32 floats: half an hour.
. "$(dirname "$0")/../lib.sh"

# The flags of a generated program, from a compiler that only tells them.
cat >"$work/m.nd" <<'END'
axis n = 4
model m(x: f32[n]) {
  w = param [n] ~ normal(1)
  return mean[n](w * x)
}
train m {
  steps = 1
}
END
cat >"$work/cc" <<'END'
#!/bin/sh
printf '%s\n' "$@" >"$0.args"
exit 1
END
chmod +x "$work/cc"
CC=$work/cc "$NDC_BUILD/ndc" "$work/m.nd" -o "$work/m" >/dev/null 2>&1
flags=$(grep -E '^-(O|f|m|std)' "$work/cc.args" | grep -v '^-march')
[ -n "$flags" ] || { fail "no flags"; exit 1; }
cc=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$NDC_BUILD/CMakeCache.txt")
sanitized=no
case $flags in *-fsanitize*) sanitized=yes ;; esac

# has FLAGS...: this processor has all of them
has() {
    for f in "$@"; do
        grep -m 1 '^flags' /proc/cpuinfo 2>/dev/null | grep -qw "$f" || return 1
    done
}

# check CPU STEP REGISTERS: right, and in vectors of these registers
check() {
    set -- "$1" "$2" "$3" -D_GNU_SOURCE -I"$NDC_SOURCE/runtime" \
        "$NDC_SOURCE/tests/runtime/ulp.c"
    cpu=$1 step=$2 registers=$3
    shift 3
    $cc $flags -march="$cpu" "$@" -o "$work/ulp" -lm || fail "$cpu: compiler"
    "$work/ulp" "$step" >"$work/out" || fail "$cpu: $(grep much "$work/out")"
    [ $sanitized = no ] && [ -n "$registers" ] || return
    $cc $flags -march="$cpu" -S "$@" -o "$work/ulp.s" || fail "$cpu: assembly"
    awk -v cpu="$cpu" -v want="$registers" '
        /^loop_[a-z]*:/ { name = $1; vectors = calls = 0; seen++ }
        name && $0 ~ want { vectors++ }
        name && ($1 ~ /^call/ || /jmp.*@PLT/) { calls++ }
        name && /\.cfi_endproc/ {
            if (!vectors || calls) {
                print cpu ": " name " " vectors " in vectors, " calls " calls"
                bad = 1
            }
            name = ""
        }
        END { exit bad || seen != 10 }' "$work/ulp.s" || fail "$cpu: vectors"
}

all=${NDC_LONG:+1}
if has avx512f avx512dq avx512vl; then
    check native "${all:-4093}" '%zmm'
elif has avx2; then
    check native "${all:-4093}" '%ymm'
else
    check native "${all:-4093}" ''
fi
if has avx2 fma bmi2; then
    check x86-64-v3 40009 '%ymm'
fi
if has sse4_2; then
    # Two functions look up a table at places that a vector holds: not here.
    check x86-64-v2 40009 ''
fi
[ $failed = 0 ]
