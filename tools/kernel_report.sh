#!/usr/bin/env bash
# Lists what every kernel of a build takes, and fails on a spill that nobody has allowed.
#
#   tools/kernel_report.sh BUILD_FOLDER
#
# Reads the reports that cmake/keep_ptxas_report.sh leaves beside the objects. Allowed spills: cmake/allowed_spills.txt.
set -euo pipefail
(($# == 1)) || { sed -n '4s/^# *//p' "$0" >&2; exit 2; }
allowed=$(dirname "$0")/../cmake/allowed_spills.txt
mapfile -t reports < <(find "$1" -name '*.ptxas' -size +0 | LC_ALL=C sort)
((${#reports[@]})) || { echo "$1: no report of a kernel; was it built with SENKO_CUDA?" >&2; exit 2; }
names=cat
for tool in cu++filt c++filt; do
  if command -v "$tool" >/dev/null; then names=$tool; break; fi
done
cat -- "${reports[@]}" | awk '
  /Compiling entry function/ { split($0, part, "\047"); name = part[2] }
  /bytes spill stores/ { spilled = $5 + 0 }
  /Used [0-9]+ registers/ {
    registers = shared = 0
    for (i = 1; i < NF; ++i) {
      if ($(i + 1) ~ /^registers/) registers = $i
      if ($i == "bytes" && $(i + 1) ~ /^smem/) shared = $(i - 1)
    }
    if (name != "") printf "%d %d %d %s\n", registers, spilled, shared, name
    name = ""
  }' | LC_ALL=C sort -u -k4 | "$names" | sed 's/(anonymous namespace):://g; s/senko::ops:://g' | awk -v allowed="$allowed" '
  BEGIN {
    while ((getline line < allowed) > 0) {
      if (line ~ /^#/ || line ~ /^ *$/) continue
      bytes = line + 0
      sub(/^ *[0-9]+ +/, "", line)
      sub(/ *#.*/, "", line)
      limit[line] = bytes
    }
    printf "%9s %7s %7s  %s\n", "registers", "spilled", "shared", "kernel"
  }
  {
    registers = $1; spilled = $2; shared = $3
    name = $0
    sub(/^[0-9]+ [0-9]+ [0-9]+ /, "", name)
    printf "%9d %7d %7d  %s\n", registers, spilled, shared, name
    ++kernels
    if (spilled == 0) next
    may = 0
    for (part in limit) if (index(name, part) && limit[part] > may) { may = limit[part]; used[part] = 1 }
    if (spilled > may) { ++bad; printf "UNEXPECTED SPILL of %d bytes (%d allowed): %s\n", spilled, may, name }
  }
  END {
    for (part in limit) if (!(part in used)) printf "an allowed spill that is none any more: %s\n", part
    printf "%d kernels, %d unexpected spills\n", kernels, bad
    exit bad > 0
  }'
