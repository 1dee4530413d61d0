#!/usr/bin/env bash
# compute-sanitizer over the kernel contract suite (what of it reaches every kernel, in parts side by
# side) and over a drafted run of at least 100 rounds, decided on the device and by the host.
# usage: testdata/cuda/sanitize.sh BUILD_FOLDER [JOBS] [TOOLS...]   (memcheck racecheck initcheck)
# Prints a line a tool and part; exit status 1 if any found an error or failed.
set -u
build=$(realpath "$1") jobs=${2:-4}
shift $(($# < 2 ? $# : 2))
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck initcheck)
logs=${SANITIZE_LOGS:-$(mktemp -d)}
mkdir -p "$logs"

# suite TOOL K
suite() {
  BOLT_TEST_BRIEF=1 BOLT_TEST_SHARD="$2/$jobs" compute-sanitizer --tool "$1" --error-exitcode 9 \
    "$build/cuda/cuda_test" -d -tce='elementary*' >"$logs/$1-$2.log" 2>&1
  echo "$1 suite $2/$jobs: status $?, $(grep -hE 'SUMMARY' "$logs/$1-$2.log" | sed 's/=* //')"
}
# drafted TOOL NAME ARGS...: a temperature at which most drafts fail, so that there are many rounds
drafted() {
  local tool=$1 name=$2 log="$logs/$1-$2.log"
  shift 2
  compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/bolt" run -m "$build/sample.bolt" \
    --device cuda --draft mtp --drafts 2 --temp 1.5 -s 3 --ignore-eos -n 330 -v \
    --receipts "$logs/receipts-$tool-$name" "$@" -p 'Count from 1 to 200.' >"$log" 2>&1
  echo "$tool $name: status $?, $(grep -hE 'SUMMARY' "$log" | sed 's/=* //'), $(
    grep -hoE '[0-9]+ rounds' "$log" | head -n 1)"
}
for tool in "${tools[@]}"; do
  drafted "$tool" drafted &
  drafted "$tool" drafted-no-graphs --no-graphs &
  for ((k = 0; k < jobs; ++k)); do suite "$tool" "$k" & done
done >"$logs/summary"
wait
sort "$logs/summary"
! grep -v 'status 0,' "$logs/summary"
