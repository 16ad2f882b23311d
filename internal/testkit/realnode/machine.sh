# The first process of a run, in mount, network and process namespaces of its own.
# Usage: machine.sh PROGRAM [ARGUMENT...]. Waits for the program, and for orphans.
set -e
mount -t tmpfs none /run
ip link set lo up
ip link add "$BRIDGE" type bridge
ip address add "$GATEWAY" dev "$BRIDGE"
ip link set "$BRIDGE" up
set +e
"$@"
