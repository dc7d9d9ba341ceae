#!/usr/bin/env bash
# Trains on several nodes, one worker on each, and goes on with those that are left when one fails.
# Submit it in the project's folder, which all nodes must see, with the environment's python on
# PATH. Flags go to main.py. It has not run on a real cluster.
#
#   sbatch deploy/slurm_elastic.sh --num_gpus=8 --checkpoint_dir=/shared/runs/a
#
#SBATCH --job-name=towers
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
# The job keeps its other nodes when one fails. If it is the first, which runs this script, Slurm
# requeues the job.
#SBATCH --no-kill
# Two minutes before the time limit this shell alone gets a signal, and all workers save and leave;
# the job resumes in its next run.
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -u
# A process without it takes no worker's place; srun hands it on.
TOWERS_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export TOWERS_TOKEN

min_workers=2
most_restarts=20
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || exit
# A run waits for the lock of one before it whose node is lost.
export TOWERS_ELASTIC=1

stopped=false
trap 'stopped=true; scancel --signal=TERM "$SLURM_JOB_ID"' TERM

# Prints the nodes that answer, in their order.
find_nodes() {
  local node
  for node in $nodes; do
    timeout 60 srun --nodes=1 --ntasks=1 --nodelist="$node" true && echo "$node"
  done
}

# Trains with one worker on each host; returns when all have ended.
train() {
  local step code
  ! $stopped || return 143
  srun --nodes="$(wc -w <<<"$hosts")" --ntasks="$(wc -w <<<"$hosts")" \
    --nodelist="${hosts//$'\n'/,}" --kill-on-bad-exit=1 --wait=0 \
    bash deploy/slurm_worker.sh "$@" &
  step=$!
  while :; do
    wait "$step"
    code=$?
    # A signal ends `wait`, and not the step.
    kill -0 "$step" 2>/dev/null || return "$code"
  done
}

# Whether a worker has forbidden a restart, which mends no mistake in flags or files.
is_mistake() {
  scontrol show job "$SLURM_JOB_ID" | grep -q 'Requeue=0'
}

export hosts=$nodes
for ((restart = 0; restart <= most_restarts; restart++)); do
  train "$@"
  code=$?
  if [ "$code" -eq 0 ] || $stopped || is_mistake; then break; fi
  sleep 10
  hosts=$(find_nodes)
  if [ "$(wc -w <<<"$hosts")" -lt "$min_workers" ]; then break; fi
done

# In its next run the job has other nodes, and resumes from the checkpoint.
if [ "$code" -ne 0 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "$most_restarts" ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
