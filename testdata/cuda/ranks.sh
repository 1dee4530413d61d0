#!/usr/bin/env bash
# Whether ranks of any number leave the logit files that one leaves, byte for byte.
#
#     testdata/cuda/ranks.sh BOLT PACKAGE BASE DEVICE...
#     testdata/cuda/ranks.sh build/gpu/bolt nano.bolt cuda:0 cuda:0,1 cuda:0,1,2,3
#     testdata/cuda/ranks.sh build/release/bolt build/release/sample.bolt cpu cpu:2 cpu:4
#
# Prompts of 5, 300 and 1,500 made-up ids, greedy and sampled, with and without drafts, in chunks;
# then eight at once through serve-stdin. Prints what each rank holds, and exits with 1 if a file
# differs, or if the control (one token fewer) does not.
set -euo pipefail
[ $# -ge 4 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
bolt=$1 package=$2 base=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 n=0

ids() {
  seq "$1" | awk '{ printf "%s%d", (NR == 1 ? "[" : ","), ($1 * 31 + 7) % 3000 } END { print "]" }'
}
for length in 5 300 1500; do ids "$length" > "$work/$length.json"; done

# DEVICE LENGTH OPTIONS...: leaves $work/logits
logits() {
  local device=$1 length=$2
  shift 2
  rm -f "$work/logits"
  "$bolt" run -q -m "$package" --device "$device" --prompt-ids "$work/$length.json" --ignore-eos \
    -c 2048 --receipts "$work/receipts" --logits "$work/logits" "$@" > "$work/text" < /dev/null
}
# As logits(), of all devices; compared with the base's.
compare() {
  logits "$base" "$@" --draft off
  mv "$work/logits" "$work/plain"
  logits "$base" "$@" --draft off -n 15
  if cmp -s "$work/logits" "$work/plain"; then echo "control: not told apart"; failed=1; fi
  for device in "${devices[@]}"; do
    for way in "--draft off" "--draft auto --drafts 7" "--draft off --chunk 100"; do
      # shellcheck disable=SC2086  # a way is several options
      logits "$device" "$@" $way
      n=$((n + 1))
      cmp -s "$work/logits" "$work/plain" || { echo "DIFFERENT: $device, $*, $way"; failed=1; }
    done
  done
}
devices=("$@")

for device in "${devices[@]}"; do
  printf '%s: ' "$device"
  "$bolt" run -v -m "$package" --device "$device" --prompt-ids "$work/5.json" -n 1 --draft off \
    -c 2048 --receipts "$work/receipts" 2>&1 > "$work/text" < /dev/null | grep '^ranks' || echo "one"
done
for length in 5 300 1500; do
  compare "$length" -n 16
  compare "$length" -n 16 --temp 0.8 --top-p 0.95 -s 7
done

for i in 1 2 3 4 5 6 7 8; do
  printf '{"id": %d, "prompt_ids": %s, "max_tokens": 16, "ignore_eos": true, "logits_sha256": true}\n' \
    "$i" "$(ids $((i * 37)))"
done > "$work/lines"
answers() {
  "$bolt" serve-stdin -q -m "$package" --device "$1" --parallel "$2" -c 2048 \
    --receipts "$work/receipts" < "$work/lines" |
    sed 's/.*"id": *\([0-9]*\).*"ids": *\(\[[^]]*\]\).*"logits_sha256": *"\([0-9a-f]*\)".*/\1 \2 \3/' |
    sort -n
}
answers "$base" 1 > "$work/alone"
[ "$(grep -c '^[1-8] \[.*\] [0-9a-f]\{64\}$' "$work/alone")" = 8 ] || { echo "serve-stdin: no 8 answers"; failed=1; }
for device in "${devices[@]}"; do
  answers "$device" 8 > "$work/together"
  n=$((n + 1))
  cmp -s "$work/alone" "$work/together" || { echo "DIFFERENT: $device, eight at once"; failed=1; }
done

[ $failed = 0 ] && echo "$n comparisons with $base: all equal"
exit $failed
