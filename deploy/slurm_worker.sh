#!/usr/bin/env bash
# One worker of slurm.sh or slurm_elastic.sh, which start it on each node with all nodes in `hosts`.
# Flags go to main.py.
set -u

# Slurm signals this shell too, which must stay until main.py has left.
trap : TERM
# Jobs that share a node need different ports.
port=$((20000 + SLURM_JOB_ID % 10000))
# shellcheck disable=SC2086,SC2154  # A word for each host, from the script that starts this one.
TF_CONFIG=$(python -m towers tf_config --index="$SLURM_PROCID" --port="$port" $hosts) &&
  export TF_CONFIG &&
  python main.py "$@"
code=$?

# A mistake in flags or files: a restart does not help. Slurm must know before it ends the others.
[ "$code" -ne 2 ] || scontrol update JobId="$SLURM_JOB_ID" Requeue=0
# Slurm ends all tasks when one fails. Leaving on request is no failure: the chief, task 0, may
# still be saving, and reports for all.
[ "$code" -ne 143 ] || [ "$SLURM_PROCID" -eq 0 ] || code=0
exit "$code"
