# Names and lands complete files. Sourced by rotate.sh and copy.sh.
# shellcheck shell=bash
#
# A file's name is its source and a consecutive number, so that names sort in the order of writing and a missing file is
# noticed. A file gets its number when it moves to state/complete; state/last records it after landing. No number is used
# twice or skipped, wherever this dies.

# shellcheck source-path=SCRIPTDIR source=state.sh
. "$(dirname "${BASH_SOURCE[0]}")/state.sh"
mkdir -p "$LANDING" "$complete"

# One process at a time. One that is started by hand waits for a scheduled one, and the other way around.
exec 9>>"$state/lock"
flock --timeout 60 9 || { echo "another process is working on $state" >&2; exit 75; }

# Sets `last` to the number of the last landed file, or 0.
read_last() {
  last=0
  [[ -e $state/last ]] || return 0
  last=$(<"$state/last")
  is_number "$last" || fail "$state/last has ${last@Q}: expected the number of the last landed file"
  last=$((10#$last))
}

# Sets `next` to the first unused number. LANDING counts only if state/last is lost, and there only files of this user:
# others choose names there, and a large number would make a gap.
choose_number() {
  local file number last
  read_last
  next=$last
  select_files "$complete"/* "$LANDING/$source"-[0-9]*
  for file in "${files[@]}"; do
    [[ $file == "$complete"/* || (! -e $state/last && -O $file) ]] || continue
    read_number "$file"
    if ((number > next)); then next=$number; fi
  done
  next=$((next + 1))
  is_number "$next" || fail "no number is left after $((next - 1)): expected at most 18 digits"
  printf -v next %07d "$next"
}

compressed() {
  case ${COMPRESS:-gzip} in
    none) cat ;;
    gzip) gzip --no-name --stdout ;;
    zstd) zstd --quiet --stdout ;;
    lz4) lz4 -q --stdout ;;
    bzip2) bzip2 --stdout ;;
    *) echo "COMPRESS=$COMPRESS: expected gzip, zstd, lz4, bzip2 or none" >&2; return 2 ;;
  esac
}

suffix() {
  case ${COMPRESS:-gzip} in
    none) ;;
    gzip) echo .gz ;;
    zstd) echo .zst ;;
    bzip2) echo .bz2 ;;
    *) echo ".$COMPRESS" ;;
  esac
}

decompressed() {
  case $1 in
    *.gz) gzip --decompress --stdout ;;
    *.zst) zstd --quiet --decompress --stdout ;;
    *.lz4) lz4 -q --decompress --stdout ;;
    *.bz2) bzip2 --decompress --stdout ;;
    *) cat ;;
  esac <"$1"
}

# is_open FILE DESCRIPTOR: true if the file of this name, and not of a link's target, is the open one.
is_open() {
  [[ $(stat --format=%d:%i -- "$1") == "$(stat --dereference --format=%d:%i "/dev/fd/$2")" ]]
}

# Sets `landed` to the file in LANDING, of any kind and owner, that has this number.
find_landed() {
  local number
  for landed in "$LANDING/$source"-*"$1".*; do
    if read_number "$landed" && ((number == $1)); then return 0; fi
  done
  return 1
}

# Moves a file within the state, and replaces none. A receiver may create another file of the old name at once, and some
# versions of mv fail if there is a file of the new name.
move() {
  local file
  file=$(stat --format=%d:%i -- "$1")
  mv --no-clobber --no-target-directory "$1" "$2" || true
  [[ $(stat --format=%d:%i -- "$2") == "$file" ]] || fail "$1 stays: $2 exists"
}

# Writes only to a file that this creates, whatever others put into LANDING meanwhile: noclobber replaces nothing, and
# the descriptor stays the same file. The name begins with a dot, which jobs ignore, until the file is complete and
# synced.
publish() {
  local part landed=$LANDING/${1##*/}$2 fd
  rm -f -- "$LANDING/.${1##*/}".*
  part=$(mktemp --dry-run "$LANDING/.${1##*/}.XXXXXXXXXX")
  set -o noclobber
  exec {fd}>"$part"
  set +o noclobber
  compressed <"$1" >&"$fd"
  sync "/dev/fd/$fd"
  mv --no-clobber --no-target-directory "$part" "$landed" || true
  if ! is_open "$landed" "$fd"; then
    rm -f -- "$part"
    fail "$1 stays: another user replaced or created $landed"
  fi
  exec {fd}>&-
}

# Moves every file in `complete` to LANDING, in order, and replaces none.
land() {
  local file number last landed suffix
  suffix=$(suffix)
  select_files "$complete"/*
  for file in "${files[@]}"; do
    read_number "$file"
    if ! find_landed "$number"; then
      publish "$file" "$suffix"
    elif ! is_plain "$landed" || [[ ! -O $landed ]] || ! decompressed "$landed" | cmp --silent - "$file"; then
      # An earlier run that died after landing the file left the same content.
      fail "$file stays: $landed has its number: move that file away"
    fi
    sync "$LANDING"
    read_last
    if ((number > last)); then
      echo "$number" >"$state/last.part"
      sync "$state/last.part"
      mv --no-target-directory "$state/last.part" "$state/last"
    fi
    rm "$file"
    echo "landed ${file##*/}$suffix"
  done
}

# Uploads files in order, as a job stops at a missing number. UPLOAD gets a copy that nobody can replace meanwhile.
upload() {
  local file fd copy
  [[ -n ${UPLOAD:-} ]] || return 0
  rm -rf "$state/upload"
  mkdir "$state/upload"
  select_files "$LANDING/$source"-[0-9]*
  for file in "${files[@]}"; do
    if [[ ! -O $file ]]; then
      report "$file is not uploaded: expected a file of this user"
      continue
    fi
    exec {fd}<"$file"
    if ! [[ -f /dev/fd/$fd && -O /dev/fd/$fd ]] || ! is_open "$file" "$fd"; then
      fail "$file was replaced before its upload"
    fi
    copy=$state/upload/${file##*/}
    cat <&"$fd" >"$copy"
    "$UPLOAD" "$copy"
    is_open "$file" "$fd" || fail "$file was replaced during its upload: it stays"
    rm -f "$file" "$copy"
    exec {fd}<&-
    echo "uploaded ${file##*/}"
  done
}
