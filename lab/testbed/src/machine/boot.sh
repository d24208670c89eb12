# The first process of a machine: in mount, pid, cgroup, uts and ipc namespaces of its own, and in
# the network of a host of the test. $1: the root that it sees; what it writes is gone with it.
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/up /mnt/work /mnt/root
root=/mnt/root
mount -t overlay overlay -o "lowerdir=$1,upperdir=/mnt/up,workdir=/mnt/work" $root
mount -t proc proc $root/proc
# The kernel is the real machine's: nothing of it is to be changed.
mount --bind $root/proc/sys $root/proc/sys
mount -o remount,bind,ro $root/proc/sys
mount -t sysfs -o ro sysfs $root/sys
mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
mount -t bpf -o mode=0700 bpf $root/sys/fs/bpf
mount -t tmpfs -o mode=755 tmpfs $root/run
mount -t tmpfs -o mode=1777 tmpfs $root/tmp
mount -t tmpfs -o mode=755 tmpfs $root/dev
for device in null zero full random urandom tty; do
    : > $root/dev/$device
    mount --bind /dev/$device $root/dev/$device
done
mkdir $root/dev/pts $root/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts $root/dev/pts
mount -t tmpfs -o mode=1777 tmpfs $root/dev/shm
ln -s pts/ptmx $root/dev/ptmx
ln -s /proc/self/fd $root/dev/fd
for stream in 0:stdin 1:stdout 2:stderr; do
    ln -s /proc/self/fd/${stream%:*} $root/dev/${stream#*:}
done
# Of the units that start by themselves, only those of the test.
rm -rf $root/usr/lib/systemd/system/*.wants $root/usr/lib/systemd/system-generators
rm -rf $root/etc/systemd/system
mkdir -p $root/etc/systemd/system $root/old
: > $root/etc/fstab
printf '[Unit]\nDescription=Machine of a test\n' > $root/etc/systemd/system/machine.target
cd $root
pivot_root . old
umount -l /old
exec env -i container=xdp-agg-testbed PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /usr/lib/systemd/systemd --system --unit=machine.target --log-target=console
