# The first process of a node, in mount, process and host name namespaces of its
# own. Usage: node.sh NAME FOLDER KUBELET [FLAG...]. Ends with kubelet, and
# everything of the node with it. Kubelet, containerd and the CNI plugins write to
# places below /run and /var that nobody can configure: the node has its own.
set -e
name=$1 dir=$2
shift 2
echo "$name" >/proc/sys/kernel/hostname
mount -t tmpfs none /run
mkdir /run/node
mount --bind "$dir" /run/node
mount -t tmpfs none /var
mkdir -p /var/log /var/tmp /var/lib "$dir"
ln -s /run /var/run
mount --bind /run/node "$dir"

containerd --config "$dir/containerd.toml" >>"$dir/containerd.log" 2>&1 &
containerd=$!
until ctr --address "$dir/containerd.sock" version >/dev/null 2>&1; do
	kill -0 $containerd
	sleep 0.05
done
for image in "$dir"/images/*.tar; do
	ctr --address "$dir/containerd.sock" --namespace k8s.io images import --snapshotter native "$image"
done
"$@" >>"$dir/kubelet.log" 2>&1
