# Names and lands complete files. Sourced by rotate.sh and copy.sh, which set `source` and the folder `state`.
# shellcheck shell=bash
#
# A file's name is its source and a consecutive number, so that names sort in the order of writing and a missing file is
# noticed. A file gets its number when it moves to state/complete; state/last records it after landing. No number is used
# twice or skipped, wherever this dies.

LANDING=${LANDING:-$state/landed}
complete=$state/complete
mkdir -p "$LANDING" "$complete"

# One process at a time. One that is started by hand waits for a scheduled one, and the other way around.
exec 9>"$state/lock"
flock --timeout 60 9 || { echo "another process is working on $state" >&2; exit 75; }

number_of() {
  local name=${1##*/}
  name=${name#"$source-"}
  echo $((10#${name%%.*}))
}

# The first unused number.
next_number() {
  local most=0 file
  [[ ! -e $state/last ]] || most=$(<"$state/last")
  for file in "$complete/$source"-[0-9]* "$LANDING/$source"-[0-9]*; do
    if [[ -e $file ]] && (($(number_of "$file") > most)); then most=$(number_of "$file"); fi
  done
  printf '%07d' $((most + 1))
}

compressed() {
  case ${COMPRESS:-gzip} in
    none) cat <"$1" ;;
    gzip) gzip --no-name --stdout "$1" ;;
    zstd) zstd --quiet --stdout "$1" ;;
    lz4) lz4 -q --stdout "$1" ;;
    bzip2) bzip2 --stdout "$1" ;;
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

# Moves every file in `complete` to LANDING. A file's name begins with a dot, which jobs ignore, until it is complete and
# synced.
land() {
  local file name number
  for file in "$complete/$source"-[0-9]*; do
    [[ -e $file ]] || continue
    name=${file##*/}$(suffix)
    number=$(number_of "$file")
    compressed "$file" >"$LANDING/.$name.part"
    chmod 640 "$LANDING/.$name.part"
    sync "$LANDING/.$name.part"
    mv "$LANDING/.$name.part" "$LANDING/$name"
    sync "$LANDING"
    if [[ ! -e $state/last ]] || ((number > $(<"$state/last"))); then
      echo "$number" >"$state/last.part"
      sync "$state/last.part"
      mv "$state/last.part" "$state/last"
    fi
    rm "$file"
    echo "landed $name"
  done
}

# Uploads files in order, as a job stops at a missing number.
upload() {
  local file
  [[ -n ${UPLOAD:-} ]] || return 0
  for file in "$LANDING/$source"-[0-9]*; do
    [[ -e $file ]] || continue
    "$UPLOAD" "$file"
    rm "$file"
    echo "uploaded ${file##*/}"
  done
}
