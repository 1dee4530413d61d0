#!/usr/bin/env bash
# How much faster `bolt receipt verify --score` checks a reply than ordinary decoding made it, both on
# the same machine, one after the other: the receipt's own decoding time against the scoring's.
#
#   testdata/receipts/score_speed.sh BOLT [PACKAGE [TOKENS [TIMES [OPTIONS...]]]]
#
# BOLT is the executable; without PACKAGE, 1 GB of generated q8 weights are made (`bolt bench --make
# dense-1b --format q8`) and removed again. TOKENS defaults to 512, TIMES to 3. OPTIONS (--device cpu,
# --threads 16, --isa avx512, ...) go to both commands; where to run is best fixed with taskset.
# Exit status: 0 every receipt held, else bolt's.
set -euo pipefail
bolt=${1:?usage: score_speed.sh BOLT [PACKAGE [TOKENS [TIMES [OPTIONS...]]]]}
package=${2:-} tokens=${3:-512} times=${4:-3}
shift $(($# < 4 ? $# : 4))

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "$package" ]; then
  package="$work/dense-1b-q8.bolt"
  "$bolt" bench --quiet --make dense-1b --format q8 "$package"
fi

# The integer after a key of one JSON line.
number() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" "$2" | head -n 1; }

"$bolt" run -m "$package" --quiet --raw -p "Warm" -n 4 --ignore-eos --draft off --receipts "$work/warm" \
  "$@" >/dev/null  # pages and hashes of the package are cached
for ((time = 1; time <= times; ++time)); do
  receipt="$work/$time.bolt.jsonl"
  "$bolt" run -m "$package" --quiet --raw -p "The quick brown fox" -n "$tokens" --ignore-eos --temp 0 \
    --draft off --receipt "$receipt" "$@" >/dev/null
  "$bolt" receipt verify -m "$package" --score --json "$receipt" "$@" >"$work/answer.json"
  decode=$(number decode_ns "$receipt") score=$(number score_ns "$work/answer.json")
  awk -v n="$tokens" -v decode="$decode" -v score="$score" 'BEGIN {
    printf "%d tokens decoded in %.3f s, scored in %.3f s: %.2f times as fast\n",
      n, decode / 1e9, score / 1e9, decode / score }'
  awk -v decode="$decode" -v score="$score" 'BEGIN { print decode / score }' >>"$work/ratios"
done
sort -n "$work/ratios" | awk '{ r[NR] = $1 } END {
  printf "median %.2f [%.2f to %.2f] of %d\n", r[int((NR + 1) / 2)], r[1], r[NR], NR }'
