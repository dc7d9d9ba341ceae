#!/usr/bin/env bash
# Trains on several nodes, one worker on each, and goes on when some are lost or come back. Submit
# it in the project's folder, which all nodes must see, with the environment's python on PATH. Flags
# go to main.py. It has not run on a real cluster.
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

min_workers=2
most_restarts=20
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || exit
workers=$(wc -w <<<"$hosts")
# Where the agents meet: on a disk of all nodes with hard links and locks, and anew in each run.
folder=$PWD/runs/meetings/$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}

# Runs the agent of one node, again after a minute if it or the node is lost, until all have ended.
keep_agent() {
  local index=$1 host=$2 restart
  shift 2
  for ((restart = 0; restart <= most_restarts; restart++)); do
    srun --nodes=1 --ntasks=1 --nodelist="$host" --no-kill --immediate=60 \
      python -m towers.launch.agent --folder="$folder" --index="$index" --host="$host" \
      --workers="$workers" --min_workers="$min_workers" -- python main.py "$@"
    [ ! -e "$folder/end.json" ] || return
    sleep 60
  done
}

stop() {
  python -m towers.launch.agent --folder="$folder" --stop
}

trap stop TERM
index=0
for host in $hosts; do
  keep_agent "$index" "$host" "$@" &
  index=$((index + 1))
done
# A signal ends `wait`, and not those that it waits for.
while [ -n "$(jobs -r)" ]; do
  wait
done

# The code of all, 143 if they were stopped. They restart from the checkpoint, unless they are done
# or it was a mistake in flags or files. `scancel` ends this shell too, so a cancelled job does not.
stop
code=$?
if [ "$code" -eq 143 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "$most_restarts" ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
