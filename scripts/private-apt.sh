# shellcheck shell=bash
# Functions for scripts that fetch packages of another Debian suite or architecture than the system's; to be sourced.
# apt does the resolving, the download and the check of signatures, in a private state directory.
#
#   GODWIT_DEBIAN_MIRROR   address of a Debian mirror, as it would stand in sources.list; default: the one of apt's own
#                          configuration
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# The address of the Debian mirror that this machine's apt uses for the main archive.
mirror() {
  if [[ -n ${GODWIT_DEBIAN_MIRROR:-} ]]; then
    echo "$GODWIT_DEBIAN_MIRROR"
    return
  fi
  # shellcheck disable=SC2016 # apt replaces $(REPO_URI), not the shell
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep --max-count 1 '/debian/*$' || true
}

# A private apt: its own sources, state and cache, nothing of the system's but the keyring and the network settings.
write_apt_configuration() { # WORK MIRROR SUITE ARCHITECTURE
  local work=$1 architecture=$4
  mkdir -p "$work"/{state/lists/partial,cache/archives/partial,etc/preferences.d}
  : >"$work/status"
  echo "deb [arch=$architecture signed-by=$keyring] $2 $3 main" >"$work/etc/sources.list"
  cat >"$work/apt.conf" <<CONF
Dir::State "$work/state";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
Dir::Etc::sourcelist "$work/etc/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "$work/etc/preferences.d";
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
CONF
}

# A mirror's index has a date until which it is valid. A mirror that is a snapshot, or a clock that is ahead, is past it:
# then the signature still is checked, and a person is told.
update_index() { # WORK
  local log=$1/update.log
  ! apt-get update -qq --error-on=any >"$log" 2>&1 || return 0
  if ! grep --quiet -E 'expired|not valid' "$log"; then
    cat "$log" >&2
    echo "private-apt: apt cannot read the Debian mirror" >&2
    exit 1
  fi
  echo "private-apt: the mirror's index is out of date; using it all the same, its signature is checked" >&2
  apt-get update -qq -o Acquire::Check-Valid-Until=false -o Acquire::Check-Date=false
}
