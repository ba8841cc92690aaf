#!/usr/bin/env bash
# Installs the system tools that `make test-k8s` wants and the machine lacks; on Debian and as root.
set -euo pipefail

missing=()
wants() {
  command -v "$1" >/dev/null || [ -e "$1" ] || missing+=("$2")
}
PATH=$PATH:/usr/sbin:/sbin
wants etcd etcd-server
wants runc runc
wants /usr/lib/cni/ptp containernetworking-plugins
wants ip iproute2
wants iptables iptables
wants openssl openssl
wants nsenter util-linux
wants buildah buildah
wants mmdebstrap mmdebstrap
wants curl curl

if [ ${#missing[@]} -eq 0 ]; then
  echo "packages of the cluster: all there"
elif command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
  echo "packages of the cluster: installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
else
  echo "packages of the cluster: missing ${missing[*]}" >&2
  exit 1
fi
