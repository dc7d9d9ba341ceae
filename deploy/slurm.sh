#!/usr/bin/env bash
# Trains on several nodes, one worker on each. Submit it in the project's folder, which all nodes
# must see, with the environment's python on PATH. Flags go to main.py. It has not run on a real
# cluster.
#
#   sbatch deploy/slurm.sh --num_gpus=8 --checkpoint_dir=/shared/runs/a
#
#SBATCH --job-name=towers
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
# Two minutes before the time limit all workers save and leave; the job resumes in its next run.
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -u
# A process without it takes no worker's place; srun hands it on.
TOWERS_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export TOWERS_TOKEN

most_restarts=20
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || exit
export hosts

# A task that fails ends all; the first that finishes ends none.
srun --kill-on-bad-exit=1 --wait=0 bash deploy/slurm_worker.sh "$@"
code=$?

# All restart from the checkpoint, unless a task has forbidden it. `scancel` ends this shell too, so
# a cancelled job does not restart.
if [ "$code" -ne 0 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "$most_restarts" ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
