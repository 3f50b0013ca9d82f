#!/usr/bin/env bash
# Trains a deck under OpenPBS or PBS Professional as a chain: each job stops before its walltime, and submits the next
# one with the same options. Started outside of a job, it submits the first one:
#
#   jobscripts/pbs.sh -l select=2:ncpus=64:mpiprocs=8 -l walltime=24:00:00 -- DECK [key=value ...]
#
# Before -- are options of qsub. The job runs in the folder of qsub, with its environment.
#
# The environment may set
#   LAUNCH          the launcher and its options; default: mpirun with the job's nodes and ranks (mpiprocs)
#   ESPALIER        the executable
#   IDLE_RESTARTS   the chain ends after this many restarts in a row without a new step; default: 2
# The deck must keep checkpoint.restart = "auto", its default. qsig -s USR1 JOB stops a job with a checkpoint, and the
# chain goes on; qdel JOB ends the chain. Exit status 0: every step is done, or the next job is submitted; 75: stopped,
# start it again by hand; 143: qdel; others: an error.
set -uo pipefail
script=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/pbs.sh
# shellcheck source=jobscripts/chain.sh
source "$(dirname "$script")/chain.sh" || exit 1
espalier=${ESPALIER:-$espalier}
Say() { echo "$(date -Is) job ${PBS_JOBID:-none}, restart ${CHAIN_RESTARTS:-0}: $*"; }

if ! SplitArguments "$@"; then
  echo "which deck? jobscripts/pbs.sh [options of qsub] -- DECK [key=value ...]" >&2
  exit 2
fi
# Submit [restarts]: the same job again; prints its number. -V: the job has this environment.
Submit() {
  CHAIN_RESTARTS=$1 qsub -N espalier -j oe -V "${options[@]}" -- "$script" "${all[@]}"
}
all=("$@")
if [[ -z ${PBS_JOBID:-} ]]; then
  ReadDeck "$espalier" "${deck[@]}" || exit 2
  Submit 0
  exit
fi
cd "${PBS_O_WORKDIR:-.}" || exit 1
ReadDeck "$espalier" "${deck[@]}" || exit 2

# The run's own clock stops it in time. PBS states how long the job may run and has run.
Attribute() { qstat -f "$PBS_JOBID" 2>/dev/null | sed -n "s/^ *$1 = //p" | head -n 1; }
Seconds() { awk -F: 'NF { for (i = 1; i <= NF; ++i) s = 60 * s + $i; print s }' <<<"$1"; }
limit=$(Seconds "$(Attribute Resource_List.walltime)")
used=$(Seconds "$(Attribute resources_used.walltime)")
left=
if [[ -n $limit ]]; then left=$((limit - ${used:-0})); fi
if [[ -n $left ]]; then export SLURM_JOB_END_TIME=$(($(date +%s) + left)); fi

# One line per rank: the name of its node.
nodefile=${PBS_NODEFILE:-/dev/null}
ranks=$(grep -c . "$nodefile")
if ((ranks == 0)); then ranks=1; fi
LauncherOr Mpirun "$ranks" "$nodefile"
TrainInJob "$ranks" "$(Hosts "$nodefile")" "$left"
restarted=no
if ((${CHAIN_RESTARTS:-0} > 0)); then restarted=yes; fi
CountIdle "$restarted" || exit 1
if next=$(Submit $((${CHAIN_RESTARTS:-0} + 1))); then
  Say "job $next goes on"
  exit 0
fi
Say "the next job could not be submitted, perhaps since nodes may not: start it again by hand"
exit 75
