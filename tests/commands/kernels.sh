# kernels.sh - --kernels, --emit=llvm and --emit=asm: who makes loop kernels, for
# which processor, and what one must not ask for.
. "$(dirname "$0")/../lib.sh"

cat >"$work/m.nd" <<'END'
axis n = 64
axis d = 37
model m(x: f32[n, d]) {
  w = param [d] ~ normal(1)
  return mean[n, d](exp(w * x) + random_normal[n, d])
}
train m {
  steps = 2
}
END

"$ndc" "$work/m.nd" --emit=llvm -o "$work/m.ll" 2>"$work/err" || {
    cat "$work/err"
    grep -q 'built without LLVM' "$work/err" && exit 77
    exit 1
}

# What LLVM makes, and what it does not.
grep -q 'define void @m_bwd(ptr' "$work/m.ll" || fail "no kernel in the IR"
grep -q '<16 x float>' "$work/m.ll" || fail "no vectors in the IR"
grep -q '^; m_fwd draws normal numbers: the C compiler makes it' "$work/m.ll" ||
    fail "a kernel by C is not told of"
grep -q '@m_fwd' "$work/m.ll" && fail "a kernel by both"

# For which processor.
if [ "$(uname -m)" = x86_64 ]; then
    for v in v3:ymm:zmm v4:zmm:none; do
        IFS=: read -r cpu has lacks <<END
$v
END
        "$ndc" "$work/m.nd" --emit=asm --cpu=x86-64-$cpu -o "$work/m.s" ||
            fail "--cpu=x86-64-$cpu"
        grep -q "%$has" "$work/m.s" || fail "$cpu: no $has"
        grep -q "%$lacks" "$work/m.s" && fail "$cpu: $lacks"
    done
fi

# By whom, unless told: LLVM, but not where flags are meant for kernels. What is
# left to read is the whole program either way.
(unset NDC_CFLAGS && "$ndc" "$work/m.nd" -o "$work/m") || fail "the default"
"$ndc" "$work/m.nd" --emit=c -o "$work/whole.c"
cmp -s "$work/m.c" "$work/whole.c" || fail "not the whole program in C"
grep -q '^NDC_SANITIZE:STRING=.' "$NDC_BUILD/CMakeCache.txt" ||
    nm "$work/m" | grep -q ' T m_bwd' || fail "a kernel that LLVM has not made"
NDC_CFLAGS=-Og "$ndc" "$work/m.nd" -o "$work/m" || fail "with flags"
nm "$work/m" | grep -q ' T m_bwd' && fail "flags for a kernel by LLVM"

# A C compiler that fails: the whole program stays, and nothing else.
mkdir "$work/bad"
printf '#!/bin/sh\ncase $* in *-E*) exec cc "$@" ;; esac\nexit 1\n' >"$work/no_cc"
chmod +x "$work/no_cc"
CC=$work/no_cc "$ndc" "$work/m.nd" --kernels=llvm -o "$work/bad/m" 2>"$work/err"
[ $? = 1 ] || fail "status of a C compiler that fails"
cmp -s "$work/bad/m.c" "$work/whole.c" || fail "not the whole program is kept"
[ "$(ls "$work/bad")" = m.c ] || fail "left behind: $(ls "$work/bad")"

# refused MESSAGE OPTIONS...
refused() {
    want=$1
    shift
    "$ndc" "$work/m.nd" "$@" >"$work/out" 2>"$work/err"
    [ $? = 2 ] || fail "status of $*"
    grep -q -- "$want" "$work/err" || fail "$*: $(cat "$work/err")"
}
refused '--kernels=fast: kernels are made by `c` or by `llvm`' --kernels=fast
refused '--kernels: --emit=llvm builds nothing' --kernels=llvm --emit=llvm
refused 'no such processor' --emit=asm --cpu=pentium9
refused '--cpu: --emit=c builds nothing' --emit=c --cpu=x86-64-v3
[ $failed = 0 ]
