# Landed files: the names they get, and the way from a file that is complete to one that a job may read. For rotate.sh
# and copy.sh, which name the source and the folder `state`.
# shellcheck shell=bash
#
# A name is the source's and a number, each one more than the last, so that names sort as files were written and a file
# that is missing is noticed. The number is taken when a file is put into state/complete, and noted in state/last when it
# was landed: whenever this dies, none is used twice and none is left out.

LANDING=${LANDING:-$state/landed}
complete=$state/complete
mkdir -p "$LANDING" "$complete"

# One at a time, also when somebody starts one by hand.
exec 9>"$state/lock"
flock --nonblock 9 || { echo "another one is at work on $state" >&2; exit 75; }

number_of() {
  local name=${1##*/}
  name=${name#"$source-"}
  echo $((10#${name%%.*}))
}

# The number after all that were used.
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

# Every file in `complete` gets to LANDING under its name at once, whole and on the disk; until then it has a name with
# a dot, which nobody reads.
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

# In order, and none before the one before it: a job that sees a number missing stops.
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
