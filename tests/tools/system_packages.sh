#!/usr/bin/env bash
# Installs the system tools that `make test-all` wants and the machine lacks; for CI, on Debian and as root.
set -euo pipefail

missing=()
wants() {
  command -v "$1" >/dev/null || missing+=("$2")
}
wants strace strace
wants mkfs.ext4 e2fsprogs
wants unshare util-linux
wants zstd zstd
wants curl curl
wants mvn maven
wants chromium chromium
wants promtool prometheus
wants wrk wrk
wants javac openjdk-17-jdk-headless
wants buildah buildah
wants podman podman
wants runc runc
wants mmdebstrap mmdebstrap

if [ ${#missing[@]} -eq 0 ]; then
  echo "system packages: all there"
elif command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
  echo "system packages: installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
else
  echo "system packages: missing ${missing[*]}; their tests are skipped, which fails here" >&2
fi
