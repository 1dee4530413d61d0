#!/usr/bin/env bash
# compute-sanitizer over the kernel contract suite (what of it reaches every kernel) and over a
# drafted run of at least 100 rounds, decided on the device and by the host.
# usage: testdata/cuda/sanitize.sh BUILD_FOLDER [JOBS] [TOOLS...]   (memcheck racecheck initcheck)
# Every test case runs in four parts, JOBS parts and runs at a time, each with a log of its own in
# $SANITIZE_LOGS. $SANITIZE_CASES: an extended regular expression; only cases whose names match.
# Prints a line a part as it ends; exit status 1 if any found an error or failed.
set -u
build=$(realpath "$1") jobs=${2:-4}
shift $(($# < 2 ? $# : 2))
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck initcheck)
logs=${SANITIZE_LOGS:-$(mktemp -d)}
mkdir -p "$logs"
export build logs

# suite TOOL K/N CASE
suite() {
  local log="$logs/$1-${3//[^A-Za-z0-9]/_}-${2%/*}.log"
  BOLT_TEST_BRIEF=1 BOLT_TEST_SHARD="$2" compute-sanitizer --tool "$1" --error-exitcode 9 \
    "$build/cuda/cuda_test" -d -tc="${3//,/?}" >"$log" 2>&1
  echo "$1 '$3' $2: status $?, $(grep -hE 'SUMMARY' "$log" | sed 's/=* //')"
}
# drafted TOOL NAME SOURCE ARGS...: two drafts a round, so that there are many rounds
drafted() {
  local tool=$1 name=$2 source=$3 log="$logs/$1-$2.log"
  shift 3
  compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/bolt" run -m "$build/sample.bolt" \
    --device cuda --draft "$source" --drafts 2 --temp 1.5 -s 3 --ignore-eos -n 330 -v \
    --receipts "$logs/receipts-$tool-$name" "$@" -p 'Count from 1 to 200.' >"$log" 2>&1
  echo "$tool $name: status $?, $(grep -hE 'SUMMARY' "$log" | sed 's/=* //'), $(
    grep -hoE '[0-9]+ rounds' "$log" | head -n 1)"
}
export -f suite drafted

mapfile -t cases < <("$build/cuda/cuda_test" -ltc | grep -vE '^(\[doctest\]|===|elementary)' |
  grep -E -- "${SANITIZE_CASES:-.}")
for tool in "${tools[@]}"; do
  printf '%s\0' "drafted $tool drafted mtp" "drafted $tool drafted-no-graphs mtp --no-graphs"
  for name in "${cases[@]}"; do
    for k in 0 1 2 3; do printf '%s\0' "suite $tool $k/4 '$name'"; done
  done
done | xargs -0 -P "$jobs" -I{} bash -c '{}' | tee "$logs/summary"
[ -s "$logs/summary" ] && ! grep -qv 'status 0,' "$logs/summary"
