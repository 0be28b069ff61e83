#!/usr/bin/env bash
# A SLURM cluster of one node on this machine, for root. It needs Debian's packages slurm-wlm and munge.
# All of it lies below a folder of its own but two links in /etc/slurm: jobs find the cluster there.
#
#   tests/slurm/cluster.sh up FOLDER           start munged, slurmctld and slurmd, wait for the node
#   tests/slurm/cluster.sh controller FOLDER   start slurmctld again
#   tests/slurm/cluster.sh down FOLDER         stop all three, remove the links
#
# Then: sinfo; snakemake --profile profiles/slurm ...
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
command=${1:?up, controller or down}
mkdir -p "${2:?a folder}"
folder=$(cd "$2" && pwd)
system=/etc/slurm

configure() {
    local host
    host=$(hostname -s)
    mkdir -p "$folder"/{state,spool,run,log}
    chmod 700 "$folder"/run
    head -c 1024 /dev/urandom >"$folder/munge.key"
    chmod 600 "$folder/munge.key"
    # Two accelerators in name only, so that requests for them are granted.
    printf "NodeName=$host Name=gpu File=%s\n" /dev/zero /dev/full >"$folder/gres.conf"
    cat >"$folder/slurm.conf" <<CONF
ClusterName=here
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/run/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MinJobAge=3600
ReturnToService=2
KillWait=30
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$(free -m | awk '/^Mem/ {print int($2 * 0.9)}') Gres=gpu:2
PartitionName=main Nodes=$host Default=YES State=UP
CONF
}

up() {
    if [ "$(id -u)" != 0 ]; then
        echo "only root can start a SLURM cluster" >&2
        exit 1
    fi
    if [ -e $system/slurm.conf ]; then
        echo "$system/slurm.conf exists: this machine has a cluster already" >&2
        exit 1
    fi
    configure
    mkdir -p $system
    ln -sf "$folder"/{slurm,gres}.conf $system/
    munged --force --key-file="$folder/munge.key" --socket="$folder/run/munge.socket" \
        --pid-file="$folder/run/munged.pid" --log-file="$folder/log/munged.log" \
        --seed-file="$folder/run/munged.seed"
    slurmctld -i
    slurmd
    for _ in $(seq 30); do
        [ "$(sinfo --noheader --format=%t 2>/dev/null)" = idle ] && exit 0
        sleep 1
    done
    echo "the node did not come up in 30 s; see $folder/log" >&2
    exit 1
}

down() {
    local pid
    for daemon in slurmd slurmctld munged; do
        pid=$(cat "$folder/run/$daemon.pid" 2>/dev/null) || continue
        kill "$pid" 2>/dev/null || continue
        while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    done
    rm -f $system/{slurm,gres}.conf
}

case $command in
up) up ;;
controller) slurmctld ;;
down) down ;;
*)
    echo "unknown command '$command' (allowed: up, controller, down)" >&2
    exit 2
    ;;
esac
