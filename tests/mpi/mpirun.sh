#!/bin/sh
# Runs a program on N ranks of this machine, with any number of cores: mpirun.sh N PROGRAM [ARGUMENT...]
ranks=$1
shift
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMP_NUM_THREADS=1
# The transport that Open MPI chooses on one host anyway, after it has looked for fast networks for 0.2 s.
export OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"
exec mpirun -n "$ranks" --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 "$@"
