#!/usr/bin/env bash
# A batch in shards, under GNU parallel and under a Slurm of one node: joined, the shards' outputs
# must be the unsharded run's, and `bolt receipt audit --lines` must prove it.
#
# usage: shards.sh BOLT parallel|slurm...
#
# parallel needs Debian's `parallel`; slurm needs root, and Debian's `slurm-wlm` and `munge`: it
# starts munged, slurmctld and slurmd of its own with files in a temporary folder, and ends them.
set -euo pipefail
bolt=$(readlink -f "$1")
shift
work=$(mktemp -d)
chmod 755 "$work"
started=()
cleanup() {
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT
for i in $(seq 40); do
  [ $((i % 13)) != 0 ] || echo "not json"
  echo "{\"id\": $i, \"prompt\": \"What is $i + $((i * 7 % 90))?\", \"think\": false}"
done >"$work/batch.jsonl"

joined() { jq -c '[.line, .id, .event, .text, .ids]' "$@" | sort; }
"$bolt" serve-stdin -q --receipts "$work/r" -o "$work/whole.jsonl" <"$work/batch.jsonl" || [ $? = 1 ]
joined "$work/whole.jsonl" >"$work/expected"

check() {  # NAME: outputs out.* and receipts r.* in $work/NAME
  joined "$work/$1"/out.* | cmp - "$work/expected" || { echo "$1: outputs differ"; exit 1; }
  "$bolt" receipt audit "$work/$1"/r.* --lines "$work/batch.jsonl"
  # The control: without the second shard the audit must find lines missing.
  if "$bolt" receipt audit "$work/$1/r.1" --lines "$work/batch.jsonl" >/dev/null; then
    echo "$1: a missing shard was not found"
    exit 1
  fi
  echo "$1: $(wc -l <"$work/expected") records, the same as unsharded"
}

with_parallel() {
  mkdir "$work/parallel"
  cd "$work/parallel"
  # A shard with bad lines ends with status 1, which parallel counts.
  parallel -j 2 "'$bolt' serve-stdin -q --shard {}/2 --receipts r.{} -o out.{} <../batch.jsonl" \
    ::: 1 2 || [ $? -le 2 ]
  cd - >/dev/null
  check parallel
}

with_slurm() {
  mkdir -p "$work/slurm" "$work/s/state" "$work/s/spool" "$work/s/munge"
  dd if=/dev/urandom of="$work/s/munge.key" bs=1024 count=1 status=none
  chmod 400 "$work/s/munge.key"
  chmod 700 "$work/s/munge"
  munged --foreground --force --key-file="$work/s/munge.key" --socket="$work/s/munge/socket" \
    --pid-file="$work/s/munge/pid" --seed-file="$work/s/munge/seed" \
    --log-file="$work/s/munge/log" &
  started+=($!)
  local host
  host=$(hostname -s)
  cat >"$work/s/slurm.conf" <<CONF
ClusterName=bolt
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/s/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
StateSaveLocation=$work/s/state
SlurmdSpoolDir=$work/s/spool
SlurmctldPidFile=$work/s/slurmctld.pid
SlurmdPidFile=$work/s/slurmd.pid
SlurmctldLogFile=$work/s/slurmctld.log
SlurmdLogFile=$work/s/slurmd.log
SlurmctldPort=16817
SlurmdPort=16818
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
CONF
  export SLURM_CONF="$work/s/slurm.conf"
  sleep 1
  slurmctld -D -f "$SLURM_CONF" >/dev/null 2>&1 &
  started+=($!)
  slurmd -D -f "$SLURM_CONF" >/dev/null 2>&1 &
  started+=($!)
  for _ in $(seq 30); do
    sinfo -h -o %t 2>/dev/null | grep -q idle && break
    sleep 1
  done
  sinfo
  export bolt work
  # Two tasks of one step: --shard slurm.
  # shellcheck disable=SC2016
  srun -n 2 --overcommit sh -c 'i=$((SLURM_PROCID + 1)); cd "$work/slurm" &&
    "$bolt" serve-stdin -q --shard slurm --receipts r.$i -o out.$i <../batch.jsonl' || [ $? = 1 ]
  check slurm
  # An array of two jobs with one task each.
  mkdir "$work/array"
  cat >"$work/s/job" <<'JOB'
#!/bin/sh
cd "$work/array" && srun --overcommit sh -c '"$bolt" serve-stdin -q --shard slurm \
  --receipts r.$SLURM_ARRAY_TASK_ID -o out.$SLURM_ARRAY_TASK_ID <../batch.jsonl'
JOB
  sbatch --wait --array=1-2 --overcommit -o "$work/s/job.%a.log" "$work/s/job" || [ $? = 1 ]
  check array
}

for how; do "with_$how"; done
