#!/bin/sh
# An installed tree works wherever it is moved: ndc finds its runtime from its
# own place, and programs that it builds run, under mpirun too.
set -eu
command -v cmake >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $*"
    exit 1
}
cmake --install "$NDC_BUILD" --prefix "$work/a" >"$work/log" ||
    fail "cmake --install: $(cat "$work/log")"
# Nobody may need the first place, nor the build's runtime.
mkdir "$work/b b"
mv "$work/a" "$work/b b/to"
top="$work/b b/to"
unset NDC_RUNTIME
PATH=$top/bin:/usr/local/bin:/usr/bin:/bin
export PATH
[ "$(command -v ndc)" = "$top/bin/ndc" ] || fail "another ndc is first"
for f in include/ndc.h include/ndrt.h share/ndc/examples/wave.nd \
    share/ndc/examples/editors/README.md share/ndc/lib/nn.nd; do
    [ -f "$top/$f" ] || fail "no $f"
done

cd "$work"
# The commands that the compiler runs tell where it looks.
cat >cc <<'SH'
#!/bin/sh
printf '%s\n' "$@" >"$(dirname "$0")/arguments"
exec cc "$@"
SH
chmod +x cc
cp "$top/share/ndc/examples/wave.nd" wave.nd
ndc check wave.nd
CC=$work/cc ndc wave.nd --set batch=16 -o wave
grep -q -x -F -e "-I$top/include" arguments || fail "headers of the build"
grep -q '^/.*/b b/to/lib.*/libndrt\.a$' arguments || fail "libndrt of the build"
grep -F -e "$NDC_BUILD" -e "$NDC_SOURCE" arguments && fail "paths of the build"
./wave --steps 3 --log local.jsonl >out || fail "$(cat out)"
[ "$(wc -l <local.jsonl)" -eq 3 ] || fail "not three steps"

# A relative path, and a link to ndc.
ln -s "$top/bin/ndc" here
CC=$work/cc ./here wave.nd --mesh dp=1,tp=1 -o one
grep -q -x -F -e "-I$top/include" arguments || fail "through a link"
./one --steps 2 >out

case " ${NDC_HAVE:-} " in
*" sanitize "*) echo "ok, without mpirun" && exit 0 ;;
*" mpi "*) ;;
*) echo "ok, without mpirun" && exit 0 ;;
esac
find "$top" -name libndrt_mpi.so | grep -q . || fail "no MPI plug-in"
readelf -d wave 2>/dev/null | grep -q 'R.*PATH.*b b/to/lib' ||
    ! command -v readelf >/dev/null || fail "no way to the MPI plug-in"
mpirun -n 4 ./wave --steps 3 --log mpi.jsonl >out 2>&1 || fail "$(cat out)"
echo "ok"
