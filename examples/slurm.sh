#!/bin/bash
#SBATCH --job-name=rekindle
#SBATCH --array=0-15          # as many workers as the queue gives
#SBATCH --cpus-per-task=1     # a worker is one process with one thread
#SBATCH --time=04:00:00
#SBATCH --requeue             # a preempted job is put into the queue again
#SBATCH --signal=B:TERM@60    # a minute before the end of its time, to this process (B:), which the worker becomes
# SLURM kills a preempted job 30 seconds after SIGTERM (KillWait): within --grace the worker has saved and exited.
# Needs REKINDLE_STORAGE in the environment, and the password in ~/.pgpass.
exec rekindle worker --study cartpole --workers "${SLURM_ARRAY_TASK_COUNT:-1}" --grace 25
