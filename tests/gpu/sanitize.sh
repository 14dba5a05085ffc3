#!/usr/bin/env bash
# The whole program on a GPU under compute-sanitizer, part by part: a line each, with the errors found.
#
#     tests/gpu/sanitize.sh BUILD [--tools memcheck,initcheck,synccheck] [--seconds 90] [--parts REGEX] [--logs FOLDER]
#
# BUILD: a build of the preset `cuda`. `--tools racecheck` is possible and slow; `none` runs the parts without a tool.
# --seconds: the most that a part may take. Exit code 1 if a part found errors, failed, or was not finished in time.
#
# | part        | what runs                                                          | covers                              |
# |-------------|--------------------------------------------------------------------|-------------------------------------|
# | prefill     | logits: 290 tokens in one step                                     | prefill, every row kept             |
# | chunked     | logits: pieces of 1, 2, 3, 64, 37 tokens                           | a prompt cut anywhere               |
# | regimes     | logits: steps of n and n + 1 rows for each bound n of a regime     | every graph, both sides of a bound  |
# | eager       | the same without graphs                                            | the same launches one by one        |
# | trimmed     | logits: only the last rows through the decoder, in pieces          | trimmed prefill, kept rows          |
# | halo        | logits: what the last rows depend on, in pieces                    | the same with a halo                |
# | hit         | logits: 192 tokens adopted, then 70 in pieces                      | prefix hit, replay of windows       |
# | hit-trimmed | the same, trimmed                                                  | replay in both passes               |
# | decode      | generate: 12 tokens                                                | decoding                            |
# | neighbours  | runtime_cuda_test: texts of several lengths, steps of random rows  | batches of prefill and decoding     |
# | crowd       | runtime_cuda_test: 1 to 18 sequences that decode                   | batches of decoding                 |
# | verify      | runtime_cuda_test: 1 to 8 rows of a sequence, some taken back      | rows to verify (wide: long steps)   |
# | engine      | runtime_cuda_engine_test: 30 requests, too few pages               | preemption, draws, cancelled clients |
# | draws       | runtime_cuda_engine_test: bans and penalties                       | draws, steps launched ahead         |
#
# The first eleven run on the models `mini10` (every role of a layer, small) and `wide` (heads, entries and window as
# the released model's) of tests/golden/configs. Nothing is suppressed.
set -uo pipefail

build=${1:?usage: sanitize.sh BUILD [options]}
shift
tools=memcheck,initcheck,synccheck
seconds=90
parts=.
logs=
while [ $# -gt 0 ]; do
  case $1 in
    --tools) tools=$2 ;;
    --seconds) seconds=$2 ;;
    --parts) parts=$2 ;;
    --logs) logs=$2 ;;
    *) echo "unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
logs=${logs:-$work}
mkdir -p "$logs"
failed=0

# run NAME PROGRAM ARGUMENTS...: under every tool.
run() {
  local name=$1 tool prefix log begin code found verdict
  shift
  [[ $name =~ $parts ]] || return 0
  for tool in ${tools//,/ }; do
    prefix="compute-sanitizer --tool $tool --error-exitcode 99 --print-limit 20"
    [ "$tool" = none ] && prefix=
    log=$logs/$name.$tool.log
    begin=$SECONDS
    # shellcheck disable=SC2086
    timeout "$seconds" $prefix "$@" >"$log" 2>&1
    code=$?
    found=$(sed -n 's/.*\(ERROR SUMMARY: [0-9]* errors*\|RACECHECK SUMMARY: [0-9]* hazards*\).*/\1/p' "$log" | tail -1)
    verdict=ok
    [ "$code" = 0 ] || verdict="FAILED, exit code $code"
    [ "$code" = 99 ] && verdict=FAILED
    [ "$code" = 124 ] && verdict="FAILED, not finished"
    [ "$verdict" = ok ] && [ "$tool" != none ] && [ -z "$found" ] && verdict="FAILED, the tool said nothing"
    [ "$verdict" = ok ] || failed=1
    printf '%-20s %-10s %4d s  %-32s %s\n' "$name" "$tool" $((SECONDS - begin)) "${found:--}" "$verdict"
  done
}

# Ids below the vocabulary of both models.
ids=$(for i in $(seq 1 620); do printf '%d,' $((i * 7919 % 500 + 3)); done)
ids=${ids%,}
first() { echo "$ids" | cut -d, -f"1-$1"; }

for model in mini10 wide; do
  "$build/bin/senko" make-model --config "$root/tests/golden/configs/$model.json" --out "$work/$model" --seed 1 \
    >"$logs/$model.make.log" 2>&1 || { cat "$logs/$model.make.log" >&2; exit 2; }
  # logits TOKENS ARGUMENTS...: in steps of 300 rows at most.
  logits() {
    local name=$1 tokens=$2
    shift 2
    printf '{"prompts": [[%s]]}' "$(first "$tokens")" >"$work/$tokens.json"
    run "$name-$model" "$build/bin/senko" logits --device cuda --model "$work/$model" --tokens "$work/$tokens.json" \
      --out "$work/logits.safetensors" --block-size 64 --max-num-batched-tokens 300 "$@"
  }
  bounds=(1 2 4 5 8 9 12 13 16 17 32 33 64 65 129 100)
  logits prefill 290 --chunks 290
  logits chunked 290 --chunks 1 2 3 64 37
  logits regimes 510 --chunks "${bounds[@]}"
  logits eager 510 --chunks "${bounds[@]}" --no-cuda-graphs
  logits trimmed 250 --decoder-replay trim --chunks 1 100 33
  logits halo 250 --decoder-replay halo --chunks 1 100 33
  logits hit 262 --encoder-replay 192 --chunks 1 33
  logits hit-trimmed 262 --encoder-replay 192 --decoder-replay trim --chunks 1 33
  run "decode-$model" "$build/bin/senko" generate --device cuda --model "$work/$model" --token-ids "$(first 40)" \
    --max-tokens 12 --temperature 0 --ignore-eos
  run "neighbours-$model" "$build/bin/runtime_cuda_test" --gtest_filter="*NeighboursNeverChangeABit/$model"
  run "crowd-$model" "$build/bin/runtime_cuda_test" --gtest_filter="*DecodingOneToEighteenSequences/$model"
done
run verify "$build/bin/runtime_cuda_test" --gtest_filter='*OneToEightRowsToVerify/wide'
run engine "$build/bin/runtime_cuda_engine_test" --gtest_filter='*EachGetsInACrowdWhatItGetsAloneExact'
run draws "$build/bin/runtime_cuda_engine_test" --gtest_filter='*BansAndPenaltiesThatMatter'
exit $failed
