#!/bin/sh
# Random programs and models under random pipelines: random_plans.sh, all of
# whose plans have one.
set -u
here=$(cd "$(dirname "$0")" && pwd)
to=40
[ -z "${NDC_LONG:-}" ] || to=300
case ${NDC_HAVE:-} in *sanitize*) to=10 ;; esac
exec sh "$here/random_plans.sh" --pipelines 1 $to
