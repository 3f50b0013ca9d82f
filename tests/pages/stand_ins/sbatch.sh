#!/usr/bin/env bash
# Stands in for Slurm's sbatch in tests of documents: sbatch [OPTION ...] SCRIPT DECK [key=value ...]. Checks that Slurm
# knows the options, that the script is one, and that the deck with these keys is right.
set -euo pipefail
while [[ ${1:-} == -* ]]; do
  case $1 in
    --ntasks=* | --time=* | --array=* | --nodes=* | --ntasks-per-node=* | --gpus-per-node=* | --gres=* | \
      --cpus-per-task=* | --partition=* | --account=* | --job-name=* | --exclusive) ;;
    *) echo "sbatch: unrecognized option '$1'" >&2 && exit 1 ;;
  esac
  shift
done
script=${1:?sbatch: no script}
bash -n "$script"
shift
espalier check "$@" >/dev/null
echo "Submitted batch job 1"
