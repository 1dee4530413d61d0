#!/usr/bin/env bash
# How much faster requests are together than one after the other, on generated weights.
#
# usage: throughput.sh BOLT [SHAPE|PACKAGE.bolt] [PARALLEL...]      default: dense-1b in q8, 1 8
#
# Each setting is run twice, in reversed order the second time, without drafts, so that the ratio is
# the sharing's own; prints tokens a second and the ratio to the first setting.
set -euo pipefail
bolt=$1 shape=${2:-dense-1b}
shift $(($# < 2 ? $# : 2))
settings=("${@:-1}")
[ $# -gt 0 ] || settings=(1 8)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export BOLT_RECEIPTS="$work/receipts"
package=$shape
if [ ! -d "$package" ]; then
  package="$work/p.bolt"
  "$bolt" bench --make "$shape" --format q8 "$package"
fi
for i in $(seq 16); do
  echo "{\"prompt_ids\": [$i, 7, 9, 11, 13], \"max_tokens\": ${TOKENS:-32}, \"ignore_eos\": true}"
done >"$work/batch.jsonl"

# Tokens a second of one run, from the summary line.
rate() {
  "$bolt" serve-stdin -m "$package" -c 256 --draft off --parallel "$1" \
    <"$work/batch.jsonl" 2>&1 >"$work/out.$1" | sed -n 's/.* s, \([0-9.]*\) tok\/s.*/\1/p'
}
reversed=()
for p in "${settings[@]}"; do reversed=("$p" "${reversed[@]}"); done
for p in "${settings[@]}" "${reversed[@]}"; do
  r=$(rate "$p")
  echo "parallel $p: $r tok/s"
  echo "$p $r" >>"$work/rates"
done
awk '{ sum[$1] += $2; if (!first) first = $1 }
     END { for (p in sum) printf "parallel %s: %.2f times parallel %s\n", p, sum[p] / sum[first], first }' \
  "$work/rates" | sort -n -k 2
ids() { jq -c '[.line, .ids]' "$1" | sort -n -t'[' -k2; }
for p in "${settings[@]}"; do
  cmp <(ids "$work/out.${settings[0]}") <(ids "$work/out.$p") || { echo "the replies differ"; exit 1; }
done
echo "the replies are the same"
