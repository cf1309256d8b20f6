# Makes the namespaces of a node, in which nothing that it does reaches the machine: the first
# process of the PID namespace ends with this one, and all others with it; mounts, interfaces and
# rules go with the last process.
#
# Runs in new mount and network namespaces. $1 is the directory of the node, $2 a process of the
# machine's network namespace, $3 the number of the node if no other has it. Writes the node's number into the file `number` at the end.
set -eu
directory=$1 machine=$2 number=$3

# The kubelet shares mounts with containers, but nobody shares them with the machine.
mount --make-rprivate /
mount --make-rshared /

# Else it is the next whose interface does not exist.
tries=0
until ip link add eth0 type veth peer name "nvlink-lab-$number" netns "$machine" 2>"$directory/link"; do
    number=$(((number + 1) % 256)) tries=$((tries + 1))
    [ "$tries" -lt 256 ] || { cat "$directory/link"; exit 1; }
done
ip link set lo up
ip address add "198.18.$number.2/30" dev eth0
ip link set eth0 up
ip route add default via "198.18.$number.1"
echo 1 >/proc/sys/net/ipv4/ip_forward

# Directories that the kubelet, containerd and CNI plugins use whatever their flags say.
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/log
mkdir "$directory/lib"
mount -t tmpfs tmpfs "$directory/lib"
mkdir "$directory/lib/upper" "$directory/lib/work"
mount -t overlay -o "lowerdir=/var/lib,upperdir=$directory/lib/upper,workdir=$directory/lib/work" overlay /var/lib
# The kubelet's own is a part of the node's directory, so that its sockets can be reached.
mkdir -p /var/lib/kubelet
mount --bind "$directory/kubelet" /var/lib/kubelet

# The kubelet sets these parameters of the kernel. It gets files instead.
mkdir "$directory/sys"
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
    kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    [ -e "/proc/sys/$name" ] || continue
    mkdir -p "$directory/sys/${name%/*}"
    cat "/proc/sys/$name" >"$directory/sys/$name"
done

# shellcheck disable=SC2016 # the inner shell expands them
exec unshare --pid --fork --kill-child --mount-proc sh -euc '
    cd "$1/sys"
    find . -type f | while read -r file; do mount --bind "$file" "/proc/sys/$file"; done
    cd /
    echo "$2" >"$1/number.new"
    mv "$1/number.new" "$1/number"
    # Waits for any child, since processes without a parent become children of this one.
    while :; do sleep 3600; done' sh "$directory" "$number"
