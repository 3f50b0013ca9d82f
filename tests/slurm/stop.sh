#!/usr/bin/env bash
# Stops what start.sh started in DIR, by process ids only, jobs first, and removes DIR: tests/slurm/stop.sh DIR
set -uo pipefail
dir=${1:?usage: stop.sh DIR}
if [[ ! -f $dir/slurm.conf ]]; then
  echo "stop.sh: no cluster in $dir" >&2
  exit 2
fi
export SLURM_CONF=$dir/slurm.conf

Jobs() { timeout 10 squeue -h -o %A 2>/dev/null | sort -u; }
mapfile -t jobs < <(Jobs)
if [[ ${#jobs[@]} -gt 0 ]]; then
  timeout 10 scancel --signal=KILL --full "${jobs[@]}" 2>/dev/null
  timeout 10 scancel "${jobs[@]}" 2>/dev/null
fi
for ((i = 0; i < 100; i++)); do
  if [[ -z $(Jobs) ]]; then break; fi
  sleep 0.1
done

# End PIDFILE NAME: TERM, and KILL after 10 s. A process id may have been given away, so the name is compared first.
End() {
  local pid i
  if [[ ! -s $1 ]]; then return; fi
  pid=$(<"$1")
  if [[ $(cat "/proc/$pid/comm" 2>/dev/null) != "$2" ]]; then return; fi
  kill -TERM "$pid" 2>/dev/null
  for ((i = 0; i < 100; i++)); do
    kill -0 "$pid" 2>/dev/null || return
    sleep 0.1
  done
  kill -KILL "$pid" 2>/dev/null
}
for file in "$dir"/pid.slurmd.*; do End "$file" slurmd; done
End "$dir/pid.slurmctld" slurmctld
End "$dir/munge/munged.pid" munged

# A slurmstepd that outlived its job has a file of this cluster open.
for process in /proc/[0-9]*; do
  if [[ $(cat "$process/comm" 2>/dev/null) != slurmstepd ]]; then continue; fi
  for file in "$process"/fd/*; do
    if [[ $(readlink "$file" 2>/dev/null) == "$dir"/* ]]; then
      kill -KILL "${process#/proc/}" 2>/dev/null
      break
    fi
  done
done
rm -rf -- "$dir"
