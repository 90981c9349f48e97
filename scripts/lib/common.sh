# Shared by the scripts beside this folder. Sourced, not run.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# Node modules and the Python environment, kept between runs.
TOOLS=${MAYFLY_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/mayfly-tools}

# --help of every script is the comment it begins with.
case ${1:-} in
  -h | --help)
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit 0 ;;
esac
export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1
export npm_config_fund=false npm_config_audit=false npm_config_update_notifier=false

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# alone COMMAND…: with no other script's install at the same time.
alone() {
  mkdir -p "$TOOLS"
  local lock status=0 mark=${TESTS_RUN:-} step=${TESTS_STEP:-}
  exec {lock}>"$TOOLS/install.lock"
  flock "$lock"
  unset TESTS_RUN TESTS_STEP  # not to be ended with the tests (steps.sh): apt-get would leave packages half installed
  "$@" {lock}>&- 9>&- || status=$?  # 9: only_one of steps.sh
  [ -z "$mark" ] || export TESTS_RUN=$mark
  [ -z "$step" ] || export TESTS_STEP=$step
  exec {lock}>&-
  return $status
}

# Debian 12 packages by purpose.
BUILD_PACKAGES=(g++ cmake ninja-build ccache mold pkg-config git ca-certificates
  libboost1.81-dev librocksdb-dev libspdlog-dev libfmt-dev libmongoc-dev libintelrdfpmath-dev libpcre2-dev libicu-dev
  libcctz-dev tzdata libxxhash-dev libsnappy-dev zlib1g-dev libzstd-dev libssl-dev libyaml-cpp-dev libcli11-dev
  prometheus-cpp-dev libjemalloc-dev catch2 librapidcheck-dev)
TEST_PACKAGES=(python3 python3-venv gcc clang-16 clang-format-16 libclang-rt-16-dev llvm-16
  universal-ctags util-linux procps)
BROWSER_PACKAGES=(chromium fonts-dejavu-core)
BENCH_PACKAGES=(redis-server)

# install_packages NAME…: apt-get, only what is missing; silent when nothing is.
install_packages() {
  local missing=() p
  for p in "$@"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  alone apt_install "${missing[@]}"
}
apt_install() {
  local sudo="" log
  # Not a name known in advance: in a folder that all may write to, another user could have put a link there.
  log=$(mktemp "$TOOLS/apt.XXXXXX")
  [ "$(id -u)" -eq 0 ] || sudo=sudo
  $sudo apt-get update -q >/dev/null || die "apt-get update failed"
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -q --no-install-recommends "$@" >"$log" 2>&1 ||
    { tail -20 "$log"; die "apt-get install failed; all it said is in $log"; }
  rm -f "$log"
}

# setup_cargo [VERSION]: raft-rs is built by cargo: the machine's, else Debian's newer one. Before 1.68 cargo fetched
# the whole index of crates.io by git.
setup_cargo() {
  local version least=${1:-1.68}
  version=$(cargo --version 2>/dev/null | grep -oE '[0-9]+\.[0-9]+' | head -1 || true)
  if [ -z "$version" ] || [ "$(printf '%s\n%s\n' "$version" "$least" | sort -V | head -1)" != "$least" ]; then
    install_packages cargo-web
    hash -r
  fi
}

# build PRESET [TARGET…]: configures once, then lets ninja decide what is out of date.
build() {
  local preset=$1
  shift
  install_packages "${BUILD_PACKAGES[@]}"
  setup_cargo
  [ "$preset" = fuzz ] && install_packages clang-16 libclang-rt-16-dev llvm-16
  cd "$ROOT"
  [ -f "build/$preset/build.ninja" ] || { say "configuring $preset"; cmake --preset "$preset" >/dev/null; }
  say "building $preset ${*:-}"
  cmake --build --preset "$preset" ${1:+--target "$@"}
}

# Node 20 or later: the machine's, else the one of scripts/lib/node from the npm registry (Debian 12 has 18).
setup_node() {
  if ! command -v node >/dev/null || ! command -v npm >/dev/null; then install_packages nodejs npm; fi
  if [ "$(node -p 'process.versions.node.split(".")[0]')" -lt 20 ]; then
    [ "$(uname -m)" = x86_64 ] || die "Node 20 or later is missing, and scripts/lib/node has it for x86_64 alone"
    npm_folder "$ROOT/scripts/lib/node"
    export PATH="$NODE_MODULES/.bin:$PATH"
  fi
}

# setup_npm FOLDER: installs FOLDER/package.json outside the tree, once a version of that file; sets NODE_MODULES.
setup_npm() {
  setup_node
  npm_folder "$1"
}
# What package-lock.json says, and nothing else: npm checks each archive's digest, and no package runs anything when it
# is installed: some would compile what no test needs, with tools that a bare machine lacks. To change a version, edit
# package.json and run `npm install --package-lock-only --omit-lockfile-registry-resolved` in FOLDER.
npm_folder() {
  local stamp
  stamp=$(cat "$1"/package*.json | sha256sum | cut -c1-16)
  NODE_MODULES="$TOOLS/npm-$(basename "$1")-$stamp/node_modules"
  [ -f "$NODE_MODULES/.complete" ] || alone npm_install "$1"
}
npm_install() {
  [ ! -f "$NODE_MODULES/.complete" ] || return 0  # by the script that was before this one
  local log
  say "installing npm packages of $(basename "$1")"
  log=$(mktemp "$TOOLS/npm.XXXXXX")
  mkdir -p "$(dirname "$NODE_MODULES")"
  cp "$1"/package*.json "$(dirname "$NODE_MODULES")/"
  (cd "$(dirname "$NODE_MODULES")" && npm ci --ignore-scripts --loglevel=error >"$log" 2>&1) ||
    { tail -20 "$log"; die "npm ci failed for $1; all it said is in $log"; }
  rm -f "$log"
  touch "$NODE_MODULES/.complete"
}

# The drivers' test files, once a version of tests/conformance/requirements.txt; sets MAYFLY_CONFORMANCE unless it is
# set. Needs PYTHON.
setup_conformance() {
  [ -z "${MAYFLY_CONFORMANCE:-}" ] || return 0
  local list=$ROOT/tests/conformance/requirements.txt folder
  folder=$TOOLS/conformance-$(sha256sum "$list" | cut -c1-16)
  [ -f "$folder/.complete" ] || alone conformance_install "$list" "$folder"
  export MAYFLY_CONFORMANCE=$folder
}
conformance_install() {
  local list=$1 folder=$2 work
  [ ! -f "$folder/.complete" ] || return 0  # by the script that was before this one
  say "fetching the drivers' test files"
  work=$(mktemp -d "$TOOLS/conformance.XXXXXX") || die "cannot write to $TOOLS"
  # pip checks the hash of the archive. It asks the archive's build system for its name and version, which pip
  # installs apart for that.
  "$PYTHON" -m pip download -q --disable-pip-version-check --no-deps -d "$work" -r "$list" ||
    { rm -rf "$work"; die "cannot fetch the drivers' test files; MAYFLY_CONFORMANCE names a folder that has them"; }
  "$PYTHON" "$ROOT/scripts/lib/unpack_conformance.py" "$work"/*.tar.gz "$work/files" ||
    { rm -rf "$work"; die "cannot unpack the drivers' test files"; }
  rm -rf "$folder"
  { touch "$work/files/.complete" && mv "$work/files" "$folder"; } || die "cannot write to $TOOLS"
  rm -rf "$work"
}

# A Python with the packages of tests/requirements.txt; sets PYTHON.
setup_python() {
  local stamp
  stamp=$(sha256sum "$ROOT/tests/requirements.txt" | cut -c1-16)
  PYTHON="$TOOLS/python-$stamp/bin/python"
  if [ ! -f "$TOOLS/python-$stamp/.complete" ]; then
    install_packages python3 python3-venv
    alone python_install "$TOOLS/python-$stamp"
  fi
}
python_install() {
  [ ! -f "$1/.complete" ] || return 0  # by the script that was before this one
  say "installing Python packages"
  rm -rf "$1"
  { /usr/bin/python3 -m venv "$1" && "$1/bin/pip" install -q -r "$ROOT/tests/requirements.txt"; } ||
    die "cannot install the packages of tests/requirements.txt"
  touch "$1/.complete"
}
