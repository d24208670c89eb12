#!/bin/sh
# TaskProlog of SLURM: tells each task its aggregator, and a name for its sums that no other step
# has. In slurm.conf: TaskProlog=/usr/share/xdp-agg/slurm/prolog.sh
# SLURM runs it as the job's user, and takes `export NAME=VALUE` from its output. What the user has
# set stays.
settings=${XDP_AGG_SLURM_ENV:-/etc/xdp-agg/slurm.env}
addr=${XDP_AGG_ADDR-}
token=${XDP_AGG_TOKEN-}
topology=${XDP_AGG_TOPOLOGY-}
job=${XDP_AGG_JOB-}
[ -r "$settings" ] || exit 0
# shellcheck source=/dev/null
. "$settings"
if [ -z "$addr" ] && [ -z "$topology" ] && [ -n "${XDP_AGG_ADDR-}" ]; then
    echo "export XDP_AGG_ADDR=$XDP_AGG_ADDR"
fi
if [ -z "$token" ] && [ -n "${XDP_AGG_TOKEN-}" ]; then
    echo "export XDP_AGG_TOKEN=$XDP_AGG_TOKEN"
fi
if [ -z "$job" ] && [ -n "${SLURM_JOB_ID-}" ]; then
    echo "export XDP_AGG_JOB=slurm-$SLURM_JOB_ID.${SLURM_STEP_ID:-batch}"
fi
