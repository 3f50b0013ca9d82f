#!/usr/bin/env bash
# Starts a Slurm of this host alone, on loopback, in DIR, as root, without systemd and without cgroups:
# tests/slurm/start.sh DIR [NODES]. Of more than one node, all are played by this host: n1, n2, ...; ranks on several of
# them need OMPI_MCA_btl=self,tcp, since Open MPI names its shared memory by host. Afterwards
# SLURM_CONF=DIR/slurm.conf reaches it, and stop.sh ends it. Needs slurmctld, slurmd, their client and munge.
# Partitions: main (its jobs can be preempted and requeued) and high.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "${1:?usage: start.sh DIR [NODES]}"
nodes=${2:-1}
dir=$(cd "$1" && pwd)
mkdir -p "$dir/munge" "$dir/state"
chmod 755 "$dir"
chmod 711 "$dir/munge"

FreePort() {
  local port
  for port in $(shuf -i 20000-29999 -n 50); do
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      echo "$port"
      return
    fi
  done
  return 1
}

host=$(hostname -s)
control_port=$(FreePort)
memory=$(awk '/^MemTotal/ { print int($2 / 1024 * 0.8) }' /proc/meminfo)
conf=$(<"$here/slurm.conf.in")
conf=${conf//@DIR@/$dir}
conf=${conf//@CTLPORT@/$control_port}
names=("$host")
if ((nodes > 1)); then mapfile -t names < <(seq -f 'n%g' "$nodes"); fi
lines=
for name in "${names[@]}"; do
  mkdir -p "$dir/spool.$name" "$dir/tmp.$name"
  lines+="NodeName=$name NodeHostname=$host NodeAddr=127.0.0.1 Port=$(FreePort) CPUs=8"
  lines+=" RealMemory=$((memory / nodes)) Gres=gpu:2 State=UNKNOWN"$'\n'
done
conf=${conf//@NODES@/$lines}
printf '%s\n' "$conf" >"$dir/slurm.conf"
for gpu in 0 1; do mknod "$dir/gpu$gpu" c 1 3; done
printf 'Name=gpu File=%s/gpu[0-1]\n' "$dir" >"$dir/gres.conf"
# slurmd 22.05 always loads a cgroup plugin; this one touches nothing when it starts.
echo 'CgroupPlugin=cgroup/v1' >"$dir/cgroup.conf"

# A munge of this cluster's own: key, socket, log and seed.
(umask 077 && head -c 128 /dev/urandom >"$dir/munge/munge.key")
munged --key-file="$dir/munge/munge.key" --socket="$dir/munge/munge.sock" --pid-file="$dir/munge/munged.pid" \
  --log-file="$dir/munge/munged.log" --seed-file="$dir/munge/munged.seed" --num-threads=2 \
  --force 2>>"$dir/munge/munged.err"

export SLURM_CONF=$dir/slurm.conf
slurmctld -D -f "$SLURM_CONF" -c >"$dir/slurmctld.out" 2>&1 </dev/null &
echo $! >"$dir/pid.slurmctld"
for name in "${names[@]}"; do
  slurmd -D -N "$name" -f "$SLURM_CONF" >"$dir/slurmd.$name.out" 2>&1 </dev/null &
  echo $! >"$dir/pid.slurmd.$name"
done
disown -a
for ((i = 0; i < 300; i++)); do
  if [[ $(sinfo -h -N -p main -t idle -o %N 2>/dev/null | sort -u | wc -l) == "$nodes" ]]; then exit 0; fi
  sleep 0.2
done
echo "start.sh: not all nodes came up" >&2
tail -n 20 "$dir"/slurm*.out "$dir"/slurm*.log "$dir"/munge/munged.* >&2 || true
exit 1
