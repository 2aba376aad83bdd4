#!/bin/sh
# ndc fmt and files: in place with the same permissions, through links, from
# stdin; --check changes nothing; a file with errors, or one that is formatted
# already, is not touched.
set -u
ndc=$NDC_BUILD/ndc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
failed=0
fail() {
    failed=$((failed + 1))
    echo "FAILED: $*"
    cat err
}
# status WANT arguments...
status() {
    want=$1
    shift
    "$ndc" fmt "$@" >out 2>err
    got=$?
    [ $got -eq "$want" ] || fail "ndc fmt $*: status $got, expected $want"
}
# is FILE 'TEXT'
is() {
    printf "$2" | cmp -s - "$1" || fail "$1 is not what it should be"
}

printf 'axis  a=1' >a.nd
printf 'axis b = 2\n' >b.nd
printf 'axis = 2 # no name\n  axis c=1\n' >bad.nd
cp bad.nd bad.copy
chmod 640 a.nd
mkdir -p far
ln a.nd hard
ln -s ../a.nd far/link.nd

status 1 --check a.nd b.nd
is out 'a.nd\n'
is a.nd 'axis  a=1'
status 0 --check b.nd
is out ''
status 1 --check bad.nd b.nd
is out ''
grep -q '^bad.nd:1:6: error: ' err || fail "no place in the error"

status 0 --stdout a.nd b.nd
is out 'axis a = 1\naxis b = 2\n'
is a.nd 'axis  a=1'

inode=$(ls -i b.nd)
status 1 far/link.nd b.nd bad.nd none.nd
grep -q 'cannot read `none.nd`' err || fail "no word about none.nd"
is a.nd 'axis a = 1\n'
is hard 'axis  a=1'
[ -L far/link.nd ] || fail "the link is gone"
case $(ls -l a.nd) in
-rw-r-----*) ;;
*) fail "other permissions: $(ls -l a.nd)" ;;
esac
[ "$inode" = "$(ls -i b.nd)" ] || fail "b.nd was written"
cmp -s bad.nd bad.copy || fail "bad.nd was changed"
# shellcheck disable=SC2012   # how many
[ "$(ls | wc -l)" -eq 8 ] || fail "files are left behind: $(ls)"

printf 'axis a=1\r\n\r\n\r\n# \303\244 \r\nlet b=a' >crlf.nd
status 0 crlf.nd
is crlf.nd 'axis a = 1\n\n# \303\244\nlet b = a\n'
printf '\357\273\277axis a = 1\n' >bom.nd
status 1 --check bom.nd
status 0 bom.nd
is bom.nd 'axis a = 1\n'
printf ' \n\n' >empty.nd
status 0 empty.nd
is empty.nd ''
printf '#x' >comment.nd
status 0 comment.nd
is comment.nd '#x\n'

printf 'axis a=1' | "$ndc" fmt - >out 2>err || fail "stdin"
is out 'axis a = 1\n'
printf 'axis a=1' | "$ndc" fmt --check - >out 2>err && fail "stdin --check"
is out '<stdin>\n'
printf 'axis a=' | "$ndc" fmt - >out 2>err && fail "stdin with an error"
is out ''

status 2
status 2 --chek a.nd
grep -q 'did you mean `--check`?' err || fail "no suggestion"
status 2 --check --stdout a.nd
status 1 .
[ $failed -eq 0 ] && echo "ok"
[ $failed -eq 0 ]
