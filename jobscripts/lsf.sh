#!/usr/bin/env bash
# Trains a deck under LSF as a chain: the job stops before its run limit with exit status 75, for which LSF requeues it
# (bsub -Q 75), and continues. Started outside of a job, it submits it:
#
#   jobscripts/lsf.sh -n 16 -R 'span[ptile=8] affinity[core(8)]' -W 24:00 -- DECK [key=value ...]
#
# Before -- are options of bsub; a slot is a rank. The job runs in the folder of bsub, with its environment.
#
# The environment may set
#   LAUNCH          the launcher and its options; default: mpirun with the job's hosts and slots
#   ESPALIER        the executable
#   IDLE_RESTARTS   the chain ends after this many restarts in a row without a new step; default: 2
# The deck must keep checkpoint.restart = "auto", its default. bkill -s USR1 JOB stops a job with a checkpoint, and the
# chain goes on; bkill JOB ends the chain. Exit status 0: every step is done; 75: LSF requeues it; 143: bkill; others:
# an error.
set -uo pipefail
script=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/lsf.sh
# shellcheck source=jobscripts/chain.sh
source "$(dirname "$script")/chain.sh" || exit 1
espalier=${ESPALIER:-$espalier}
Say() { echo "$(date -Is) job ${LSB_JOBID:-none}: $*"; }

if ! SplitArguments "$@"; then
  echo "which deck? jobscripts/lsf.sh [options of bsub] -- DECK [key=value ...]" >&2
  exit 2
fi
ReadDeck "$espalier" "${deck[@]}" || exit 2
# LSF keeps no count of requeues: this file has that of the chain.
chain=$run_dir/lsf_job
if [[ -z ${LSB_JOBID:-} ]]; then
  # -wa, -wt: USR1 two minutes before the run limit, if the run's own clock has not stopped it before.
  exec bsub -J espalier -o 'espalier.%J.out' -Q 75 -wa USR1 -wt 2 "${options[@]}" "$script" "$@"
fi

# The run's own clock stops it in time. bjobs prints what is left as "hours:minutes L".
left=$(bjobs -noheader -o time_left "$LSB_JOBID" 2>/dev/null |
  awk -F'[: ]+' '$1 ~ /^[0-9]+$/ && $2 ~ /^[0-9]+$/ { print 3600 * $1 + 60 * $2; exit }')
if [[ -n $left ]]; then export SLURM_JOB_END_TIME=$(($(date +%s) + left)); fi

# One line per slot: the name of its host.
hostfile=${LSB_DJOB_HOSTFILE:-/dev/null}
ranks=${LSB_DJOB_NUMPROC:-1}
LauncherOr Mpirun "$ranks" "$hostfile"
TrainInJob "$ranks" "$(Hosts "$hostfile")" "$left"
restarted=no
if [[ $(cat "$chain" 2>/dev/null) == "$LSB_JOBID" ]]; then restarted=yes; fi
echo "$LSB_JOBID" >"$chain"
CountIdle "$restarted" || exit 1
Say "LSF requeues this job"
exit 75
