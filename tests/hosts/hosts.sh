#!/usr/bin/env bash
# Plays several hosts on this one: each is a network namespace with a name, an address and a cable to a common switch,
# so that mpirun starts ranks on them as on a cluster, their messages go over TCP, and a cable can be pulled. All see
# the same files and processes.
#
#   hosts.sh check                      exit 77 and why, if that cannot be done here (it takes root and iproute2)
#   hosts.sh up COUNT | down            makes host1 to hostCOUNT; removes them, and every process that still runs there
#   hosts.sh mpirun RANKS COMMAND ...   RANKS ranks on each host, started on host1
#   hosts.sh on HOST COMMAND ...        a command on one host, from which mpirun reaches the others
#   hosts.sh pull HOST | plug HOST      its cable
#   hosts.sh slow HOST RATE             what it sends passes at RATE, such as 2mbit; exit 77 if that cannot be done here
#   hosts.sh processes HOST             process ids of what runs there
#
# HOSTS (letters; "esp" if unset) tells apart the hosts of several users.
set -euo pipefail

set_name=${HOSTS:-esp}
switch=${set_name}-switch
network=10.77.0
self=$(readlink -f "${BASH_SOURCE[0]}")

# Namespaces of this set, in the order of their numbers.
Spaces() { ip netns list 2>/dev/null | sed -n "s/^\($set_name-host[0-9]*\).*/\1/p" | sort -V; }

# On HOST COMMAND ...: as on that host, its name included.
On() {
  local host=$1
  shift
  # shellcheck disable=SC2016  # the inner shell expands it
  exec ip netns exec "$set_name-$host" unshare --uts bash -c 'hostname "$0"; exec "$@"' "$host" "$@"
}

Check() {
  local why=
  if [[ $EUID -ne 0 ]]; then
    why="needs root"
  elif ! command -v ip >/dev/null; then
    why="needs iproute2"
  elif ! ip netns add "$set_name-try" 2>/dev/null; then
    why="network namespaces cannot be made here"
  fi
  ip netns del "$set_name-try" 2>/dev/null || true
  if [[ -n $why ]]; then
    echo "skipped: $why"
    exit 77
  fi
}

Up() {
  local count=$1 i space names="127.0.0.1 localhost"
  for ((i = 1; i <= count; ++i)); do names+=$'\n'"$network.$i host$i"; done
  ip link add "$switch" type bridge
  ip link set "$switch" up
  for ((i = 1; i <= count; ++i)); do
    space=$set_name-host$i
    ip netns add "$space"
    mkdir -p "/etc/netns/$space"
    echo "$names" >"/etc/netns/$space/hosts"
    ip link add "$set_name-$i" type veth peer name eth0 netns "$space"
    ip link set "$set_name-$i" master "$switch" up
    ip -n "$space" addr add "$network.$i/24" dev eth0
    ip -n "$space" link set eth0 up
    ip -n "$space" link set lo up
  done
}

Down() {
  local space pid
  for space in $(Spaces); do
    for pid in $(ip netns pids "$space"); do kill -KILL "$pid" 2>/dev/null || true; done
    ip link del "$set_name-${space##*-host}" 2>/dev/null || true  # its namespace would take a while to do so
    ip netns del "$space"
    rm -rf "/etc/netns/$space"
  done
  ip link del "$switch" 2>/dev/null || true
}

# OnWithMpirun HOST COMMAND ...: mpirun, by whomever it is called, starts its daemons by this script in place of ssh.
OnWithMpirun() {
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export OMPI_MCA_plm_rsh_agent="env HOSTS=$set_name $self daemon" OMPI_MCA_mpi_yield_when_idle=1
  export OMPI_MCA_btl_vader_single_copy_mechanism=none
  export OMPI_MCA_btl_tcp_if_include=$network.0/24 OMPI_MCA_oob_tcp_if_include=$network.0/24
  On "$@"
}

# mpirun starts its daemons by this script in place of ssh.
Mpirun() {
  local ranks=$1 agent hosts
  shift
  hosts=$(Spaces | sed "s/^$set_name-//; s/\$/:$ranks/" | paste -sd,)
  agent="env HOSTS=$set_name $self daemon"
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  On host1 mpirun -H "$hosts" -n $(($(Spaces | wc -l) * ranks)) --oversubscribe --bind-to none \
    --mca mpi_yield_when_idle 1 \
    --mca btl_vader_single_copy_mechanism none --mca plm_rsh_agent "$agent" --mca btl_tcp_if_include "$network.0/24" \
    --mca oob_tcp_if_include "$network.0/24" "$@"
}

Slow() {
  ip netns exec "$set_name-$1" tc qdisc add dev eth0 root tbf rate "$2" burst 4kb latency 1s && return
  echo "skipped: no queue of tc limits a rate here"
  exit 77
}

case ${1:-} in
  check) Check ;;
  up) Up "$2" ;;
  down) Down ;;
  mpirun) Mpirun "${@:2}" ;;
  on) OnWithMpirun "${@:2}" ;;
  daemon) On "$2" bash -c "${*:3}" ;;
  pull) ip -n "$set_name-$2" link set eth0 down ;;
  plug) ip -n "$set_name-$2" link set eth0 up ;;
  slow) Slow "${@:2}" ;;
  processes) ip netns pids "$set_name-$2" ;;
  *)
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$self"
    exit 2
    ;;
esac
