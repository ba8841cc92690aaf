#!/usr/bin/env bash
# Builds an image of docker/Dockerfile: docker/build.sh [NAME] [further options of the builder…]
#   BUILDER=docker|podman|buildah   unset: the first of them that works here
#   BASE_IMAGE=…                    another base than the Dockerfile's, or that one with its digest
#   TARGET=runtime|spark            what to build; runtime unless told
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name="${1:-tierlog:latest}"
shift || true

builder="${BUILDER:-}"
if [ -z "$builder" ]; then
  if command -v docker >/dev/null && docker info >/dev/null 2>&1; then builder=docker
  elif command -v podman >/dev/null; then builder=podman
  elif command -v buildah >/dev/null; then builder=buildah
  else
    echo "docker/build.sh: no docker that runs, no podman and no buildah found; install one of them" >&2
    exit 1
  fi
fi

version="$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)"
revision="$(git rev-parse HEAD 2>/dev/null || echo unknown)"
options=(
  --file docker/Dockerfile
  --target "${TARGET:-runtime}"
  --build-arg "VERSION=$version"
  --build-arg "REVISION=$revision"
)
if [ -n "${BASE_IMAGE:-}" ]; then options+=(--build-arg "BASE_IMAGE=$BASE_IMAGE"); fi
# health checks are not in the OCI format
if [ "$builder" != docker ]; then options+=(--format docker); fi
read -r -a before <<<"${BUILDER_OPTIONS:-}"
exec "$builder" "${before[@]}" build "${options[@]}" "$@" --tag "$name" .
