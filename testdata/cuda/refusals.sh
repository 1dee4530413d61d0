#!/usr/bin/env bash
# What `bolt run --device cuda` says and how it ends where there is no driver, an old one, no GPU, an
# old GPU, too little memory, and where the GPU is lost on the way: one clear line, the exit status,
# and no sealed receipt of a run that failed. With a driver that lies (driver_shim.c).
# usage: testdata/cuda/refusals.sh BOLT PACKAGE
# Exit status: 0 all as it should be, 1 not, 77 no C compiler. Without a GPU the cases that need one
# are left out and named.
set -u
bolt=$(realpath "$1") package=$(realpath "$2")
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
command -v cc >/dev/null || { echo "refusals: no C compiler"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/shim" "$work/receipts"
cc -shared -fPIC -O1 -o "$work/shim/libcuda.so.1" "$here/driver_shim.c" -ldl || exit 1
driver=$(ldconfig -p 2>/dev/null | awk '/libcuda\.so\.1 .*x86-64/ {print $NF; exit}')
failed=0

# expect NAME LIE STATUS TEXT [ARGS...]: the last line of stderr holds TEXT, no receipt is sealed.
expect() {
  local name=$1 lie=$2 status=$3 text=$4 got line
  shift 4
  rm -rf "$work/receipts"; mkdir "$work/receipts"
  BOLT_SHIM=$lie BOLT_SHIM_DRIVER=$driver LD_LIBRARY_PATH="$work/shim" timeout 120 "$bolt" run \
    -m "$package" --device cuda --receipts "$work/receipts" --draft mtp --drafts 3 --temp 0 \
    --ignore-eos -n 40 -q "$@" -p 'Count from 1 to 20.' >"$work/out" 2>"$work/err"
  got=$?
  line=$(tail -n 1 "$work/err")
  if [ "$got" != "$status" ] || [[ "$line" != *"$text"* ]]; then
    echo "FAIL $name: status $got, expected $status; stderr ends: $line"
    failed=1
    return
  fi
  if [ "$status" != 0 ]; then
    for receipt in "$work"/receipts/*; do
      [ -e "$receipt" ] || continue
      if "$bolt" receipt verify "$receipt" >/dev/null 2>&1; then
        echo "FAIL $name: a failed run left the sealed receipt $receipt"
        failed=1
        return
      fi
    done
  fi
  echo "ok   $name: $line"
}

expect 'old driver' old 6 'too old: it is for CUDA 11.4, this build needs one for'
expect 'no GPU' none 6 'no NVIDIA GPU is visible'
if [ -n "$driver" ] && [ -e /dev/nvidia0 ]; then
  expect 'as it is' '' 0 ''
  expect 'old GPU' sm_75 6 'is sm_75, at least sm_80 is needed'
  expect 'weights do not fit' memory:1000000 6 'MiB free; no format of bolt'
  for n in 1 4 5 9; do expect "allocation $n fails" "alloc:$n" 6 'free'; done
  for n in 1 3 8 14; do expect "lost at wait $n" "lost:$n" 6 'the GPU is lost to this run'; done
  expect 'lost without graphs' lost:12 6 'the GPU is lost to this run' --no-graphs
else
  echo 'skip: old GPU, memory, loss: no GPU here'
fi
exit $failed
