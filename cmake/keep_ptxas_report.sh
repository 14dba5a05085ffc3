#!/usr/bin/env bash
# Launches nvcc and keeps what ptxas says of each kernel (-Xptxas -v) beside the object, so that the report is as fresh
# as the object, whatever a build had to compile again. tools/kernel_report.sh reads it. Everything else goes through.
object='' previous=''
for argument in "$@"; do
  [[ $previous != -o ]] || object=$argument
  previous=$argument
done
[[ $object == *.o ]] || exec "$@"
"$@" 2>"$object.ptxas"
code=$?
grep -vE '^ptxas info|^ +[0-9]+ bytes stack frame' "$object.ptxas" >&2
exit "$code"
