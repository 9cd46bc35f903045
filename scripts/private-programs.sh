# shellcheck shell=bash
# Functions for scripts that install programs of another Debian suite than the system's under a prefix of their own, with their own
# loader and libraries; to be sourced after private-apt.sh. They use:
#   prefix     where to
#   packages   names of packages to fetch
#   programs   names of programs to install from them
#   data       directories of the packages that they read, to be had below the prefix by the same names; none if it is not set
# shellcheck disable=SC2154 # these, and keyring, are whose it is that sources it
fail() {
  echo "${0##*/}: $*" >&2
  exit 1
}

check_tools() {
  local tool
  for tool in apt-get dpkg-deb patchelf; do
    command -v "$tool" >/dev/null || fail "$tool is needed and not installed: apt-get install $tool"
  done
  [[ -r $keyring ]] || fail "$keyring is missing; install the package debian-archive-keyring"
  ((EUID == 0)) || fail "must be run as root, to write $prefix"
}

fetch() { # WORK: packages unpacked in WORK/root
  local archive work=$1
  export APT_CONFIG=$work/apt.conf
  update_index "$work"
  apt-get install -qq -y --download-only -o Debug::NoLocking=true "${packages[@]}" >/dev/null
  mkdir "$work/root"
  for archive in "$work"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$archive" | tar --extract --directory "$work/root" --exclude './usr/share/doc' --exclude './usr/share/man' --exclude './usr/share/locale'
  done
  unset APT_CONFIG
}

# Podman's helpers are in a directory of its own.
find_program() { # WORK NAME
  find "$1/root" -path "*/bin/$2" -o -path "*/sbin/$2" -o -path "*/lib/podman/$2" -o -path "*/libexec/podman/$2" | head -n 1
}

find_library() { # WORK NAME
  find "$1/root" -name "$2" ! -type d | head -n 1
}

# Copies a program's or library's libraries, and theirs, into WORK/lib. Reads what is written in the files instead of
# running the loader, so it works for another architecture too.
collect_libraries() { # WORK FILE
  local work=$1 name path
  for name in $(patchelf --print-needed "$2"); do
    [[ ! -e $work/lib/$name ]] || continue
    path=$(find_library "$work" "$name")
    [[ -n $path ]] || fail "library $name, needed by $2, is in none of the packages"
    cp --dereference "$path" "$work/lib/$name"
    collect_libraries "$work" "$work/lib/$name"
  done
}

assemble() { # WORK: programs in WORK/bin, libraries in WORK/lib
  local work=$1 name path loader
  mkdir "$work/bin" "$work/lib"
  for name in "${programs[@]}"; do
    path=$(find_program "$work" "$name")
    [[ -n $path ]] || fail "program $name is in none of the packages"
    cp "$path" "$work/bin/$name"
    # A static program has no interpreter and needs nothing.
    loader=$(patchelf --print-interpreter "$path" 2>/dev/null) || continue
    collect_libraries "$work" "$path"
    cp --dereference "$(find_library "$work" "${loader##*/}")" "$work/lib/${loader##*/}"
    patchelf --set-interpreter "$prefix/lib/${loader##*/}" --force-rpath --set-rpath "$prefix/lib" "$work/bin/$name"
  done
  chmod -R u+w,a+rX "$work/bin" "$work/lib"
}

# Each file is replaced by a rename: programs that run keep the file that they have.
put_in_place() { # WORK
  local work=$1 directory file
  for directory in lib bin; do
    mkdir -p "$prefix/$directory"
    for file in "$work/$directory"/*; do
      cp "$file" "$prefix/$directory/.new"
      mv -f "$prefix/$directory/.new" "$prefix/$directory/${file##*/}"
    done
  done
  for directory in "${data[@]-}"; do
    [[ -n $directory ]] || continue
    mkdir -p "$prefix/$directory"
    cp --recursive --preserve=mode --no-target-directory "$work/root/$directory" "$prefix/$directory"
  done
  for file in "${packages[@]}"; do
    (cd "$work/cache/archives" && printf '%s\n' "$file"_*.deb)
  done >"$prefix/VERSION"
}
