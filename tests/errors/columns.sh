#!/bin/sh
# Columns count characters; the caret stands below its word where the line has
# tabs or letters of several bytes, and a long list of errors ends at twenty.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
printf 'axis batch = 4\nmodel m(x: f32[batch]) {\n' >a.nd
printf '\ty = x *\t(foo + 1)\n  s = "größe" + bar\n' >>a.nd
printf '  return mean[batch](x)\n}\n' >>a.nd
"$NDC_BUILD/ndc" a.nd >out 2>err
{
    echo 'a.nd:3:11: error: unknown name `foo`'
    printf '    3 | \ty = x *\t(foo + 1)\n'
    printf '      | \t       \t ^~~\n'
    echo 'a.nd:4:7: error: a string is not a value'
    echo '    4 |   s = "größe" + bar'
    echo '      |       ^~~~~~~'
    echo 'a.nd:4:17: error: unknown name `bar`'
    echo '    4 |   s = "größe" + bar'
    echo '      |                 ^~~'
} >want
sed -i 's/; did you mean.*//' err
diff want err || exit 1

{
    printf 'axis batch = 4\nmodel m(x: f32[batch]) {\n'
    i=0
    while [ $i -lt 30 ]; do
        i=$((i + 1))
        echo "  y$i = missing_$i(x)"
    done
    printf '  return mean[batch](x)\n}\n'
} >b.nd
"$NDC_BUILD/ndc" b.nd >out 2>err
status=$?
n=$(grep -c '^b.nd:.*error:' err)
[ "$n" -eq 20 ] && [ $status -eq 1 ] && grep -q 'too many errors' err && exit 0
echo "$n errors, status $status"
cat err
exit 1
