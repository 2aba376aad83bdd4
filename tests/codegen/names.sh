#!/bin/sh
# Whatever a program calls its axes, values, parameters, outputs, models and
# mesh axes: the C text compiles without a warning, names that hide others
# included. Each word is tried alone, in every role, then all at once.
. "$(dirname "$0")/../lib.sh"
tried=0

words="NULL INFINITY NAN INT32_MIN EOF M_PI __LINE__ __FILE__ _Bool _Xy _z __x
 X_ B_ P_ G_ M_ X_batch B_x P_w G_m nd_ nd_exp nd_bits_float ndrt_ ndrt_rank
 ndrt_gemm NDRT_NONE bool true int float auto restrict nullptr typeof main at
 weight gradient place places program params extents groups stages buckets
 inputs outputs ranges metrics bucket0 actions weights_at gradients_at mesh_name r l l2
 l3 i k n o p v y0 gamma index exp log sqrt fmaf rintf memcpy memset isnan
 signbit errno stdin int32_t size_t uint64_t training seed step stream loss
 prepare forward backward send_forward stage0 stage0_forward stage0_actions
 send receive t x_row x_next x_now x_kept d_w w_2 w_3 v_int v_w n_batch n_m o_m
 o_batch m_fwd m_bwd m_pre m_fwd_2 layers_forward reduce_scatter all_gather
 piece linux unix offsetof alignas static_assert B_loss X_m n_m_m o_m_m"

check() { # FILE WHAT clang|''
    if ! timeout 10 "$ndc" "$1" --emit=c > "$work/p.c" 2> "$work/err"; then
        grep -q 'error: ' "$work/err" && return    # a word of the language
        fail "ndc: $2"
        cat "$work/err"
        return
    fi
    tried=$((tried + 1))
    for cc in gcc clang; do          # clang, slower, for one role per word
        command -v $cc > /dev/null && [ "$cc $3" != "clang " ] || continue
        $cc -std=c11 -fsyntax-only -Wall -Wextra -Wshadow -Werror \
            -fopenmp-simd -I"$NDC_SOURCE/runtime" "$work/p.c" \
            > "$work/err" 2>&1 || {
            fail "$cc: $2"
            head -5 "$work/err"
        }
    done
}

for n in $words; do
    cat > "$work/value.nd" <<END
axis batch = 6
axis a = 4
axis layers = 2
axis inner = 3
use nn
model m(x: f32[batch, a], ${n}_: f32[batch, a]) {
  w = param [a] ~ ones
  $n = param [a] ~ ones
  c = x * ${n}_
  repeat layers {
    c = sin(c) * $n
    repeat inner {
      c = exp(c) * w
    }
  }
  ${n}__ = softmax[a](c)
  output ${n}__
  return mean[batch, a](c * ${n}__ * w) / sum[batch, a](exp(x))
}
plan {
  mesh m = 2, pp = 2
  shard a -> m
  pipeline layers -> pp, microbatches = 2
}
END
    cat > "$work/axis.nd" <<END
axis batch = 6
axis $n = 4
axis b = 3
model $n(x: f32[batch, $n]) {
  w = param [$n, b] ~ ones
  q = param [$n] ~ ones
  y = sum[$n](exp(x * q) * w)
  z = max[$n](x * q)
  output y
  return mean[batch, b](y * z)
}
plan {
  mesh $n = 2, m = 2
  shard $n -> $n, batch -> m
}
END
    cat > "$work/input.nd" <<END
axis batch = 6
axis a = 4
model m($n: f32[batch, a]) {
  w = param [a] ~ ones
  x = exp($n * w)
  return mean[batch, a](x * $n) / sum[batch, a](x)
}
plan {
  mesh m = 2
  shard batch -> m, a -> m
}
END
    cat > "$work/repeat.nd" <<END
axis batch = 6
axis $n = 2
model m(x: f32[batch]) {
  c = x
  w = param [batch] ~ ones
  repeat $n {
    u = param [batch] ~ ones
    c = sin(c * w) * u
  }
  return mean[batch](c)
}
plan {
  mesh pp = 2
  pipeline $n -> pp, microbatches = 1
}
END
    check "$work/value.nd" "$n as value" clang
    for role in axis input repeat; do
        check "$work/$role.nd" "$n as $role" ""
    done
done

{
    echo 'axis batch = 4'
    echo 'model m(x: f32[batch]) {'
    echo '  h = x'
    for n in $words; do
        case $n in bool | int | float | true | index | exp | log | sqrt | sin)
            continue ;;
        esac
        echo "  $n = param [batch] ~ ones"
        echo "  h = sin(h * $n)"
    done
    echo '  return mean[batch](h)'
    echo '}'
} > "$work/all.nd"
check "$work/all.nd" "all at once" clang
cat "$work/err"
echo "$tried programs, $failed failed"
[ $failed = 0 ] && [ $tried -gt 400 ]
