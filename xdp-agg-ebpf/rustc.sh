#!/bin/sh
# rustc for the kernel programs (.cargo/config.toml): the same instructions in every directory.
#
# Cargo names a crate outside the workspace by a hash of its absolute path; the hash is part of the
# symbols, these decide in which order LLVM sees the functions, and with that what it makes of them. So
# the object of one clone differed by an instruction from that of another.
case " $* " in
*" --crate-name xdp_agg_common "*) ;;
*) exec "$@" ;;
esac
for argument do
    shift
    case $argument in
    metadata=*) argument=metadata=xdp-agg-common ;;
    esac
    set -- "$@" "$argument"
done
exec "$@"
