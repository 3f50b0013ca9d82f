# Sourced by the scripts that make chains of jobs, slurm.sbatch, pbs.sh and lsf.sh: each job runs the ranks, stops in
# time, and the next one continues. Each script defines Say TEXT first.
# shellcheck shell=bash

# shellcheck source=jobscripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh" || return

# SplitArguments [option ...] -- DECK [key=value ...]: sets `options` and `deck`. Returns 1 without a deck.
SplitArguments() {
  options=()
  while [[ $# -gt 0 && $1 != -- ]]; do
    options+=("$1")
    shift
  done
  # shellcheck disable=SC2034  # read by the scripts
  deck=("${@:2}")
  [[ $# -gt 1 ]]
}

# ReadDeck ESPALIER DECK [key=value ...]: sets `run_dir`. Returns 2 if the deck is wrong, or begins anew in every job.
ReadDeck() {
  run_dir=$(RunDir "$@") || return 2
  if [[ $(DeckValue "$1" checkpoint restart "${@:2}") == never ]]; then
    Say 'checkpoint.restart = "never": each job of the chain would begin anew; set it to "auto"'
    return 2
  fi
}

Progress() { cat "$run_dir/checkpoints/latest" 2>/dev/null; }

# Adds to `launcher`: each rank sees only the GPU of its local rank. With all GPUs visible, libraries would create
# contexts on the first one. Single quotes: the rank expands it.
GiveEachRankAGpu() {
  if [[ -z ${CUDA_VISIBLE_DEVICES:-} ]]; then return; fi
  # shellcheck disable=SC2016
  launcher+=(bash -c 'IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
    local_rank=${OMPI_COMM_WORLD_LOCAL_RANK:-${SLURM_LOCALID:-0}}
    export CUDA_VISIBLE_DEVICES=${gpus[local_rank % ${#gpus[@]}]}
    exec "$@"' bash)
}

# Launch COMMAND ...: runs the launcher of the ranks, and sets `status`, `before` and `after` (the checkpoints) and
# `signalled` (the last signal that came, or nothing). USR1, USR2 and TERM of the scheduler become USR1: srun and mpirun
# forward it to every rank, while TERM would end the ranks. With `stays` set the command may have no children for a
# while.
Launch() {
  local pid asked=0 seen
  # shellcheck disable=SC2034  # read by the scripts
  before=$(Progress) signalled=
  Say "starts from ${before:-nothing}"
  # In the background, because bash runs a trap only after a foreground command has ended.
  "$@" </dev/null &
  pid=$!
  if [[ -z ${stays:-} ]]; then EndIfAlone "$pid" & fi
  trap 'asked=$((asked + 1)) signalled=USR1; kill -USR1 "$pid" 2>/dev/null' USR1 USR2
  trap 'asked=$((asked + 1)) signalled=TERM; kill -USR1 "$pid" 2>/dev/null' TERM
  # A signal interrupts `wait`, which then does not return the launcher's status.
  while
    seen=$asked
    wait "$pid"
    status=$?
    ((asked != seen))
  do :; done
  trap '' USR1 USR2 TERM
  after=$(Progress)
  Say "ended with $status at ${after:-nothing}"
}

# For mpirun, which kills the ranks a second after TERM, while a step may take longer: a session of its own with TERM
# blocked, since schedulers send TERM to the process group, Slurm to every process of the job. mpirun unblocks it for
# the ranks, which take TERM as a request to stop. If this script is killed, mpirun gets USR1 and forwards it.
OwnSession() {
  local block=(env --block-signal=TERM)
  if ! "${block[@]}" true 2>/dev/null; then
    block=()
    Say "env cannot block signals here (coreutils before 8.31): TERM to mpirun kills the ranks"
  fi
  if command -v setpriv >/dev/null && setpriv --pdeathsig USR1 true 2>/dev/null; then
    launcher=(setpriv --pdeathsig USR1 setsid "${block[@]}" "${launcher[@]}")
  else
    launcher=(setsid "${block[@]}" "${launcher[@]}")
  fi
}

# After Launch: all steps are done. srun returns 0 for steps that Slurm has ended, so the run's own file decides: a
# start with steps to do removes it.
RunIsDone() { [[ -e $run_dir/done && $status -eq 0 ]]; }

# After Launch: the next job is to go on. 75: stopped. 0 without the file, or 128 and more (a signal): the scheduler
# ended it, or a node died. Others need a person.
MayGoOn() { ((status == 75 || status == 0 || status >= 128)); }

# Mpirun RANKS [HOSTFILE]: sets `launcher` to mpirun, on the hosts of a file with a line per rank. The scheduler has
# assigned the cores: binding by mpirun would put ranks of two jobs on a host on the same ones.
Mpirun() {
  launcher=(mpirun -n "$1" --oversubscribe --bind-to none)
  if [[ -s ${2:-} ]]; then launcher+=(--hostfile "$2"); fi
}

# LauncherOr COMMAND ...: sets `launcher` to LAUNCH, or else by a command.
LauncherOr() {
  read -ra launcher <<<"${LAUNCH:-}"
  if ((${#launcher[@]} == 0)); then "$@"; fi
}

# Hosts FILE: the number of hosts in such a file; at least 1.
Hosts() {
  local hosts
  hosts=$(sort -u "$1" | grep -c .)
  echo $((hosts > 0 ? hosts : 1))
}

# TrainInJob RANKS HOSTS SECONDS_LEFT: runs the deck by `launcher`. Exits if the chain ends here: all steps are done
# (0), a fault (its status), or the scheduler was asked to end the job (143). At a time limit TERM comes, too, but the
# run has stopped before.
TrainInJob() {
  GiveEachRankAGpu
  Say "$1 ranks on $2 hosts, ${NCPUS:-$(nproc)} cores on the first, GPUs of the first host:" \
    "${CUDA_VISIBLE_DEVICES:-none}, seconds left: ${3:-not known}"
  OwnSession
  Launch "${launcher[@]}" "$espalier" run "${deck[@]}"
  if RunIsDone; then exit 0; fi
  if ! MayGoOn; then
    Say "a fault: the chain ends"
    exit "$status"
  fi
  if [[ $signalled == TERM ]]; then
    Say "TERM: the chain ends; the same command goes on with it"
    exit 143
  fi
}

# CountIdle yes|no: `idle` is the number of restarts in a row without a new step; "no" for the first job of a chain. A
# chain that makes no progress would run until the allocation is used up.
CountIdle() {
  local file=$run_dir/restarts_without_a_step
  idle=0
  if [[ $1 == yes && $before == "$after" ]]; then idle=$(($(cat "$file" 2>/dev/null || echo 0) + 1)); fi
  echo "$idle" >"$file"
  if ((idle >= ${IDLE_RESTARTS:-2})); then
    Say "no step in $idle restarts: the chain ends"
    return 1
  fi
}
