#!/bin/sh
# EpilogSlurmctld or Epilog of SLURM: ends what a job has left at its aggregators, for example the
# place that it keeps for workers that were to come back.
# In slurm.conf: EpilogSlurmctld=/usr/share/xdp-agg/slurm/epilog.sh
# It always succeeds: a node whose Epilog fails would be drained.
settings=${XDP_AGG_SLURM_ENV:-/etc/xdp-agg/slurm.env}
[ -n "${SLURM_JOB_ID-}" ] && [ -r "$settings" ] || exit 0
# shellcheck source=/dev/null
. "$settings"
export XDP_AGG_TOKEN="${XDP_AGG_TOKEN-}"
[ -n "$XDP_AGG_TOKEN" ] || unset XDP_AGG_TOKEN
for addr in $(echo "${XDP_AGG_ADDR-}" | tr ',' ' '); do
    case $addr in
    *:*) ;;
    *) addr=$addr:9870 ;;
    esac
    names=$(xdp-agg jobs --control "$addr" list --json |
        grep -o '"job": *"slurm-'"$SLURM_JOB_ID"'\.[^"]*"' | cut -d '"' -f 4)
    for name in $names; do
        # Another node's Epilog may have done it meanwhile.
        if xdp-agg jobs --control "$addr" delete "$name"; then
            echo "xdp-agg: $name was left at $addr, and is ended" >&2
        fi
    done
done
exit 0
