#!/usr/bin/env bash
# Everything about Senko from a bare Debian 12 or Ubuntu 24.04 machine. `./senko.sh help` lists the commands.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
caller_dir=$OLDPWD

# ---- what the machine needs ------------------------------------------------------------------------------------------
build_packages=(build-essential cmake ninja-build ccache pkg-config
                nlohmann-json3-dev libfmt-dev libcli11-dev libpcre2-dev libutf8proc-dev
                libhwy-dev libssl-dev libcurl4-openssl-dev libgtest-dev libgmock-dev libbenchmark-dev
                librapidcheck-dev
                'libboost1.83-dev|libboost1.81-dev' prometheus-cpp-dev libspdlog-dev)
test_packages=(clang python3 python3-venv)
lint_packages=(clang clang-format clang-tidy)

usage() {
  cat <<'EOF'
Usage: ./senko.sh COMMAND [ARGUMENTS]

  serve [FLAGS]          build if needed and serve the small bundled model, or --model DIR, on http://127.0.0.1:8000
  chat [FLAGS]           talk to a server from this terminal
  generate "text"        build if needed and let the small bundled model go on from "text"
  generate --model DIR --prompt "text" ...   the same with a checkpoint; arguments are those of `senko generate`
  build [PRESET]         configure and build a preset of CMakePresets.json (release)
  test [--all] [STAGE]   the tests that CI runs; --all adds ThreadSanitizer, long tests and long fuzzing; with names of
                         stages (docs/testing.md) only they run, on what earlier runs have built
  bench [ARGUMENTS]      build and run `senko bench`
  lint                   clang-format and clang-tidy over src/
  senko ARGUMENTS        build and run the program with these arguments

Missing packages are installed with apt (through sudo when not root), after saying which.
EOF
}

say() { printf '\n== %s\n' "$*" >&2; }
fail() { printf 'senko.sh: %s\n' "$*" >&2; exit 2; }

is_installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# one_of "NEWER|OLDER": the one that is installed, else the first that apt knows. Any other name is itself.
one_of() {
  local package
  for package in ${1//|/ }; do
    if [[ $package == "$1" ]] || is_installed "$package"; then echo "$package"; return; fi
  done
  for package in ${1//|/ }; do
    if apt-cache show "$package" >/dev/null 2>&1; then echo "$package"; return; fi
  done
  echo "${1##*|}"
}

# install PACKAGE...: installs with apt what dpkg does not know as installed; touches nothing when all is there.
install() {
  local package missing=() named=()
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian-like machine: make sure that it has the counterparts of: $*"
    return
  fi
  for package in "$@"; do
    is_installed "$(one_of "$package")" || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      fail "these packages are missing and there is no sudo; install them as root: ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -q
  for package in "${missing[@]}"; do named+=("$(one_of "$package")"); done # apt knows all names only now
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${named[@]}"
}

# clang's sanitizer and fuzzer runtimes are a package named after its version.
install_clang_runtime() {
  local version
  version=$(clang++ -dumpversion) || return 0
  install "libclang-rt-${version%%.*}-dev"
}

jobs_here() { nproc; }

# ---- building and running --------------------------------------------------------------------------------------------
build_program() {
  install "${build_packages[@]}"
  [[ -f build/release/build.ninja ]] || { say "configuring build/release"; cmake --preset release >&2; }
  # Quiet when nothing is to be done, so that a run prints only the program's own words.
  if ! cmake --build build/release --target senko bundled_model -- -n | grep -q 'no work to do'; then
    say "building build/release"
    cmake --build build/release --target senko bundled_model >&2
  fi
}

# Runs the program from the caller's folder, so that relative paths mean what they say.
run_program() {
  local program=$PWD/build/release/bin/senko
  cd "$caller_dir"
  exec "$program" "$@"
}

command_build() {
  local preset=${1:-release}
  install "${build_packages[@]}"
  [[ $preset != fuzz ]] || { install clang; install_clang_runtime; }
  [[ $preset != cuda ]] || find_nvcc || fail "preset cuda: no nvcc here; install the CUDA toolkit 13"
  cmake --preset "$preset"
  cmake --build --preset "$preset"
  [[ $preset != cuda ]] || tools/kernel_report.sh build/cuda
}

command_generate() {
  build_program
  if (($# > 0)) && [[ $1 != -* ]]; then
    local prompt=$1
    shift
    set -- --prompt "$prompt" "$@"
  fi
  run_program generate "$@"
}

command_lint() {
  install "${build_packages[@]}" "${lint_packages[@]}"
  cmake --preset release
  cmake --build --preset release --target senko >/dev/null # generated headers
  local formatted=0 tidy=0
  git ls-files 'src/*.h' 'src/*.cc' 'src/*.cu' 'src/*.cuh' | xargs clang-format --dry-run --Werror || formatted=1
  git ls-files 'src/*.cc' | xargs -P "$(jobs_here)" -n 4 clang-tidy --quiet -p build/release || tidy=1
  ((formatted == 0)) || say "clang-format: run it with -i on the files above"
  ((tidy == 0)) || say "clang-tidy: see the findings above"
  return $((formatted | tidy))
}

find_nvcc() {
  [[ ! -x /usr/local/cuda/bin/nvcc ]] || PATH=$PATH:/usr/local/cuda/bin
  command -v nvcc >/dev/null
}

# ---- tests -----------------------------------------------------------------------------------------------------------
logs=build/test-logs
table=() failures=0 skips=0 passes=0
only=() # stages asked for by name; empty: all
ordinary_stages=(packages python-packages build tests quickstart benchmarks-run python-tests golden tokenizer chat cuda
                 asan-build asan-tests fuzz-build fuzz)
all_stages=(golden-long load-long prompt-long clients tsan-build tsan-tests) # with --all only

# stage NAME FUNCTION [ARGUMENTS]: runs it in a subshell that stops at the first failing command, shows and keeps its
# output, and notes the result. Exit code 77 is a skip; what it wrote to fd 3 goes in the table.
stage() {
  local name=$1 log=$logs/$1.log start=$SECONDS result code
  shift
  wanted "$name" || return 0
  say "$name"
  set +e
  (set -e; "$@") 3>"$log.note" 2>&1 </dev/null | tee "$log"
  code=${PIPESTATUS[0]}
  set -e
  case $code in
    0) result=passed; passes=$((passes + 1)) ;;
    77) result=skipped; skips=$((skips + 1)) ;;
    *) result=FAILED; failures=$((failures + 1)) ;;
  esac
  table+=("$(printf '%-18s %-8s %5d s  %s' "$name" "$result" $((SECONDS - start)) "$(paste -sd ';' "$log.note")")")
}
note() { printf '%s\n' "$*" >&3; }
skip() { note "$*"; exit 77; }
wanted() { ((${#only[@]} == 0)) || [[ " ${only[*]} " == *" $1 "* ]]; }
passed() { ! wanted "$1" || [[ " ${table[*]} " =~ \ $1\ +passed\  ]]; }

has_build_packages() {
  local package
  command -v dpkg-query >/dev/null || return 0
  for package in "${build_packages[@]}"; do is_installed "$(one_of "$package")" || return 1; done
}

# lacking STAGE: the stages that it builds on and that have left nothing behind here, in order, one a line.
lacking() {
  local bin=build/test/${1%-*}/bin
  case $1 in
    python-packages)
      [[ -x build/test/venv/bin/python ]] || python3 -c 'import ensurepip' 2>/dev/null || echo packages ;;
    fuzz-build) { has_build_packages && command -v clang++ >/dev/null; } || echo packages ;;
    build | asan-build | tsan-build) has_build_packages || echo packages ;;
    asan-tests | tsan-tests)
      compgen -G "$bin/*_test" >/dev/null || { lacking "${1%-*}-build"; echo "${1%-*}-build"; } ;;
    fuzz) compgen -G 'build/test/fuzz/bin/*_fuzz' >/dev/null || { lacking fuzz-build; echo fuzz-build; } ;;
    tests | quickstart | benchmarks-run | cuda)
      [[ -x build/test/release/bin/senko ]] || { lacking build; echo build; } ;;
    python-tests | golden | golden-long | load-long | prompt-long | tokenizer | chat | clients)
      [[ -x build/test/venv/bin/python ]] || { lacking python-packages; echo python-packages; }
      lacking tests ;;
  esac
}

# check_names: every stage asked for exists, and what it builds on is there or asked for, too.
check_names() { # ALL
  local name need first=() flag=()
  local valid=("${ordinary_stages[@]}")
  (($1 == 0)) || { valid+=("${all_stages[@]}"); flag=(--all); }
  for name in "${only[@]}"; do
    if (($1 == 0)) && [[ " ${all_stages[*]} " == *" $name "* ]]; then
      fail "stage '$name' needs --all: ./senko.sh test --all $name"
    fi
    [[ " ${valid[*]} " == *" $name "* ]] ||
      fail "there is no stage '$name'; the stages: ${ordinary_stages[*]}; with --all also: ${all_stages[*]}"
  done
  for name in "${only[@]}"; do
    first=()
    for need in $(lacking "$name"); do
      wanted "$need" || [[ " ${first[*]} " == *" $need "* ]] || first+=("$need")
    done
    ((${#first[@]} == 0)) ||
      fail "stage '$name' builds on others; run them first: ./senko.sh test ${flag[*]:+${flag[*]} }${first[*]}"
  done
}

# The Python of the tests, in a stage that imports MODULES.
python=$PWD/build/test/venv/bin/python
need_python() { # MODULE...
  local module
  [[ -x $python ]] || skip "python-packages has not made build/test/venv"
  for module in "$@"; do
    "$python" -c "import $module" 2>/dev/null || skip "no $module in build/test/venv: see python-packages"
  done
}

stage_packages() {
  install "${build_packages[@]}" "${test_packages[@]}"
  install_clang_runtime
  g++ --version | head -n 1
  cmake --version | head -n 1
}

# The tests' own build folders, so that warnings as errors do not disturb what `build` made.
stage_build() { # PRESET [CMAKE ARGUMENTS]
  local preset=$1
  shift
  cmake --preset "$preset" -B "build/test/$preset" -DSENKO_WERROR=ON "$@"
  cmake --build "build/test/$preset"
}

# What the stages after it run: with device code where it can be compiled, so that no host code is compiled twice.
stage_build_release() {
  local preset=release
  if find_nvcc; then
    preset=cuda
    note "with CUDA"
  fi
  cmake --preset "$preset" -B build/test/release -DSENKO_WERROR=ON
  cmake --build build/test/release
}

stage_ctest() { # PRESET [CTEST ARGUMENTS]
  local preset=$1 report
  shift
  report=$(mktemp)
  ctest --test-dir "build/test/$preset" --output-on-failure -j "$(jobs_here)" --no-tests=error "$@" | tee "$report"
  note "$(grep -m 1 'tests passed' "$report")"
  local skipped
  skipped=$(grep '(Skipped)' "$report" | sed 's/.* - //; s/ (Skipped)//' | sort -u | paste -sd ' ' || true)
  rm -f "$report"
  [[ -z $skipped ]] || note "skipped: $skipped"
}

# The way a newcomer goes: the bundled model, a few words, twice the same.
stage_quickstart() {
  local senko=build/test/release/bin/senko first second
  cmake --build build/test/release --target senko bundled_model
  first=$("$senko" generate --prompt "Hello" --max-tokens 16 --seed 7)
  second=$("$senko" generate --prompt "Hello" --max-tokens 16 --seed 7)
  printf '%s\n' "$first"
  [[ $first == "$second" ]]
}

# Benchmarks are only checked to run: every case once.
stage_bench_smoke() {
  local bench count=0 senko=build/test/release/bin/senko
  for bench in build/test/release/bin/*_bench; do
    [[ -x $bench && $bench != *_sm90_bench && $bench != *_cuda_*_bench ]] || continue
    "$bench" --benchmark_min_time=0.001 >/dev/null
    count=$((count + 1))
  done
  "$senko" bench decode --batch 1,2 --context 128 --decode-tokens 4
  "$senko" bench prefill --prompt-tokens 16 --repeats 1
  "$senko" bench ttft --prompt-tokens 64 --cached-tokens 128,256 --new-tokens 16 --repeats 1
  "$senko" bench mixed --prompt-tokens 256 --budgets 64 --stream-tokens 16 --quiet-tokens 4
  note "$count operator programs, decode, prefill, ttft, mixed"
}

stage_fuzz_build() {
  command -v clang++ >/dev/null || skip "no clang"
  cmake --preset fuzz -B build/test/fuzz
  cmake --build build/test/fuzz --target "$1"
}

fuzz_one() { # PROGRAM SECONDS
  local name seeds=()
  name=$(basename "$1")
  mkdir -p "build/fuzz-corpus/$name"
  [[ ! -d tests/fuzz/$name ]] || seeds=("tests/fuzz/$name")
  if ! "$1" -max_total_time="$2" -timeout=20 -rss_limit_mb=3072 -print_final_stats=1 \
    -artifact_prefix="build/fuzz-corpus/$name-" "build/fuzz-corpus/$name" "${seeds[@]}" \
    >"$logs/$name.log" 2>&1; then
    tail -n 40 "$logs/$name.log"
    echo "$name: FAILED; the input is build/fuzz-corpus/$name-*"
    return 1
  fi
  echo "$name: $(awk '/number_of_executed_units/ {print $2}' "$logs/$name.log") inputs in $2 s"
}

stage_fuzz() { # SECONDS
  local seconds=$1 program pids=() bad=0 pid programs=(build/test/fuzz/bin/*_fuzz)
  [[ -x ${programs[0]} ]] || { echo "no fuzz target was built"; return 1; }
  for program in "${programs[@]}"; do
    while (($(jobs -rp | wc -l) >= $(jobs_here))); do sleep 0.5; done
    fuzz_one "$program" "$seconds" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || bad=1; done
  note "${#programs[@]} targets, $seconds s each"
  return "$bad"
}

# Python packages that cannot be had are named; the tests that need them skip themselves by name.
stage_python_packages() {
  command -v python3 >/dev/null || skip "no python3"
  local requirement missing=() venv=build/test/venv
  [[ -x $venv/bin/python ]] || python3 -m venv "$venv"
  while read -r requirement; do
    [[ -n $requirement && $requirement != \#* ]] || continue
    "$venv/bin/pip" install -q --disable-pip-version-check "$requirement" || missing+=("$requirement")
  done <tests/requirements.txt
  ((${#missing[@]} == 0)) || note "cannot be had: ${missing[*]}"
  # The released tokenizer, for the C++ tests too.
  "$venv/bin/python" tests/text/make_v41_tokenizer.py || note "no released tokenizer"
}

stage_python_tests() {
  local report=$logs/pytest-report.log
  need_python pytest
  if "$python" -c 'import ml_dtypes' 2>/dev/null; then
    "$python" tests/numerics/make_golden.py --check
  else
    note "no ml_dtypes: golden data not made again"
  fi
  local senko=build/test/release/bin/senko
  "$python" -m pytest tests -q -rs -p no:cacheprovider --ignore tests/serve --ignore tests/clients --senko "$senko" |
    tee "$report"
  note "$(grep -E '(passed|failed|skipped).* in ' "$report" | tail -n 1 | tr -d '=')"
  # Tests of a running server watch a clock. One that fails is given a second chance, and the table says so.
  local serve=("$python" -m pytest tests/serve -q -rs -o "cache_dir=$PWD/build/test/pytest-cache" --senko "$senko")
  if ! "${serve[@]}" | tee "$report"; then
    note "tests/serve: $(grep -E '(passed|failed|skipped).* in ' "$report" | tail -n 1 | tr -d '='), failures repeated:"
    "${serve[@]}" --last-failed | tee "$report"
  fi
  note "tests/serve: $(grep -E '(passed|failed|skipped).* in ' "$report" | tail -n 1 | tr -d '=')"
}

# Tools that others wrote, each with packages of its own (2 GiB together), against the server.
stage_clients() {
  local venvs=build/test/clients report=$logs/pytest-report.log tool missing=()
  need_python pytest numpy safetensors
  for tool in aiperf lm_eval; do
    [[ -x $venvs/$tool/bin/python ]] || python3 -m venv "$venvs/$tool"
    "$venvs/$tool/bin/pip" install -q --disable-pip-version-check -r "tests/clients/$tool.txt" || missing+=("$tool")
  done
  ((${#missing[@]} == 0)) || note "cannot be had: ${missing[*]}"
  ((${#missing[@]} < 2)) || exit 77
  "$python" -m pytest tests/clients -q -rs -p no:cacheprovider --senko build/test/release/bin/senko \
    --clients "$venvs" | tee "$report"
  note "$(grep -E '(passed|failed|skipped).* in ' "$report" | tail -n 1 | tr -d '=')"
}

# Against implementations of others: transformers' logits (stored), the tokenizers package, the chat encoder.
stage_golden() {
  local senko=build/test/release/bin/senko
  need_python numpy
  "$python" tests/golden/compare.py --senko "$senko"
  "$python" tests/golden/compare_layers.py --senko "$senko"
  local folder=tests/golden/configs
  "$python" tests/golden/compare_layers.py --senko "$senko" --numerics model --config \
    "$folder/mini10.json,$folder/ratio1_clamp.json,$folder/ratio2_shared.json,$folder/yarn_ramp.json,\
$folder/window_official.json,$folder/engram_first.json"
  "$python" tests/golden/compare_layers.py --senko "$senko" --numerics model-noaq --config "$folder/mini10.json"
  "$python" tests/golden/compare_replay.py --senko "$senko"
}
stage_golden_long() {
  need_python numpy
  "$python" tests/golden/compare_long.py --senko build/test/release/bin/senko
}
stage_tokenizer() {
  need_python tokenizers
  "$python" tests/text/compare_tokenizer.py --tool build/test/release/bin/text_tool
}
stage_chat() {
  need_python deepseek_recipe
  "$python" tests/text/compare_chat.py --tool build/test/release/bin/text_tool
}

# Ten minutes of 256 streams, a fifth of whose clients leave: no error, and nothing stays behind.
stage_load_long() {
  local report=$logs/load-long-report.log
  need_python pytest
  "$python" -m pytest tests/serve/load_test.py -q -s -p no:cacheprovider --load-seconds 600 \
    --senko build/test/release/bin/senko | tee "$report"
  note "$(grep -E '"(tokens|overhead_us_per_token)"' "$report" | tr -d ' ",' | paste -sd ' ')"
}

# A prompt of a million tokens takes the workspace of a short one.
stage_prompt_long() {
  local report=$logs/prompt-long-report.log
  need_python pytest
  "$python" -m pytest tests/serve/long_prompt_test.py -q -s -p no:cacheprovider --long \
    --senko build/test/release/bin/senko | tee "$report"
  note "$(grep ' tokens: ' "$report" | tail -n 1)"
}

# That the device code compiles is seen by `build`. Here: no kernel spills which did not before, and the tests on a GPU,
# which report themselves as skipped where there is none.
stage_cuda() {
  find_nvcc || skip "no nvcc"
  tools/kernel_report.sh build/test/release
  stage_ctest release -L gpu
  nvidia-smi -L >/dev/null 2>&1 || return 0
  need_python numpy
  "$python" tests/gpu/compare_gpu.py --senko build/test/release/bin/senko
  "$python" tests/golden/compare.py --senko build/test/release/bin/senko --device cuda
  "$python" tests/golden/compare_layers.py --senko build/test/release/bin/senko --device cuda
}

command_test() {
  local all=0 begin=$SECONDS
  if [[ ${1:-} == --all ]]; then
    all=1
    shift
  fi
  [[ ${1:-} != -* ]] || fail "test takes --all and names of stages, not '$1'"
  only=("$@")
  check_names "$all"
  mkdir -p "$logs"
  local ordinary=(-LE 'long|gpu') fuzz_target=fuzzers fuzz_seconds=20
  ((all == 0)) || { ordinary=(-LE gpu); fuzz_target=all; fuzz_seconds=600; } # all: clang compiles every room

  stage packages stage_packages
  stage python-packages stage_python_packages
  stage build stage_build_release
  if passed build; then
    stage tests stage_ctest release "${ordinary[@]}"
    stage quickstart stage_quickstart
    stage benchmarks-run stage_bench_smoke
    stage python-tests stage_python_tests
    stage golden stage_golden
    ((all == 0)) || stage golden-long stage_golden_long
    ((all == 0)) || stage load-long stage_load_long
    ((all == 0)) || stage prompt-long stage_prompt_long
    stage tokenizer stage_tokenizer
    stage chat stage_chat
    stage cuda stage_cuda
    ((all == 0)) || stage clients stage_clients
  fi
  stage asan-build stage_build asan
  ! passed asan-build || stage asan-tests stage_ctest asan "${ordinary[@]}"
  if ((all)); then
    stage tsan-build stage_build tsan
    ! passed tsan-build || stage tsan-tests stage_ctest tsan "${ordinary[@]}"
  fi
  stage fuzz-build stage_fuzz_build "$fuzz_target"
  ! passed fuzz-build || stage fuzz stage_fuzz "$fuzz_seconds"

  ((passes + skips + failures)) || fail "no stage ran: ${only[*]}"
  say "summary ($((SECONDS - begin)) s on $(jobs_here) CPUs; logs in $logs)"
  printf '%s\n' "${table[@]}"
  printf 'stages: %d passed, %d failed, %d skipped\n' "$passes" "$failures" "$skips"
  ((failures == 0))
}

case ${1:-help} in
  generate) shift; command_generate "$@" ;;
  build) shift; command_build "$@" ;;
  test) shift; command_test "$@" ;;
  bench) shift; build_program; run_program bench "$@" ;;
  lint) command_lint ;;
  senko) shift; build_program; run_program "$@" ;;
  serve) shift; build_program; run_program serve "$@" ;;
  chat) shift; build_program; run_program chat "$@" ;;
  help | -h | --help) usage ;;
  *) usage >&2; fail "unknown command '$1'" ;;
esac
