# Reads a script's arguments SOURCE and STATE, checks the folder of the state, and reads names and numbers. Sourced by
# the other scripts. Only this user writes to the state. Others may write to LANDING, and choose names there.
# shellcheck shell=bash disable=SC2034 # the other scripts use the variables
#
# Bash runs commands in text that it evaluates as a number, as in x[$(command)]. So text is compared with a pattern of
# digits before any arithmetic. More than 18 digits do not fit into Bash's numbers.

# In other locales, [0-9] may match more than ten characters.
LC_ALL=C
# Nothing that these scripts write is readable by everybody at any time. The group reads landed files.
umask 027
shopt -s nullglob dotglob

source=${1:?expected a source} state=${2:?expected the folder of its state}
[[ $state == /* ]] || state=$PWD/$state
LANDING=${LANDING:-$state/landed}
[[ $LANDING == /* ]] || LANDING=$PWD/$LANDING
complete=$state/complete
status=0

# The journal shows these lines as errors, if standard error is connected to it.
level=
[[ -z ${JOURNAL_STREAM:-} || $(stat --dereference --format=%d:%i /dev/stderr) != "$JOURNAL_STREAM" ]] || level='<3>'

report() {
  echo "$level$source: $*" >&2
  status=1
}

fail() {
  report "$@"
  exit 1
}

is_number() { [[ $1 =~ ^[0-9]{1,18}$ ]]; }

# read_setting NAME DEFAULT: sets the variable of this name to the number that it has in the environment.
read_setting() {
  local value=${!1:-$2}
  is_number "$value" || fail "$1=${value@Q}: expected a number of at most 18 digits"
  printf -v "$1" %d "$((10#$value))"
}

# Sets `number` to that in the name of a file of this source, such as shop-0000001.bin.zst.
read_number() {
  local name=${1##*/}
  [[ $name == "$source"-* ]] || return 1
  [[ ${name#"$source-"} =~ ^([0-9]{1,18})\.(bin|pgcopy)(\.(gz|zst|lz4|bz2))?$ ]] || return 1
  number=$((10#${BASH_REMATCH[1]}))
}

# is_old FILE SECONDS: true if the file was not changed for so long, or if its time is not a number.
is_old() {
  local changed
  changed=$(stat --format=%Y -- "$1") || return 1
  ! is_number "$changed" || (($(date +%s) - 10#$changed >= $2))
}

is_plain() { [[ -f $1 && ! -L $1 ]]; }

# Sets `files` to the files of this source among the arguments, and reports all others.
select_files() {
  local path number
  files=()
  for path in "$@"; do
    if ! read_number "$path"; then
      # Sources may share a folder: shop-eu-0000001.bin is a file of shop-eu.
      [[ $path == "$LANDING"/* && $path =~ -[0-9]{1,18}\.(bin|pgcopy)(\.[a-z0-9]+)?$ ]] ||
        report "${path@Q} stays: expected a name such as $source-0000001.bin"
    elif ! is_plain "$path"; then
      report "${path@Q} stays: expected a plain file, not a link or another kind of file"
    else
      files+=("$path")
    fi
  done
}

[[ $source != [._]* && $source != *[/[:cntrl:]]* ]] ||
  fail "${source@Q}: expected a source's name without slashes and control characters that does not begin with . or _"
# What a unit writes there is gone when it ends.
[[ -z ${HAS_PRIVATE_TMP:-} || ! $LANDING/ =~ ^/(var/)?tmp/ ]] ||
  fail "LANDING=$LANDING: expected a folder elsewhere, as /tmp and /var/tmp are the unit's own"
if [[ -d $state ]]; then
  [[ $(stat --dereference --format=%A -- "$state") != ????????w* ]] ||
    fail "every user may write to $state: expected a folder of this user"
  [[ ! -L $complete && (-d $complete || ! -e $complete) ]] || fail "$complete: expected a folder, and not a link to one"
  for path in "$state"/{current,renamed,rotated,part,last,last.part,lock,receiver.lock}; do
    [[ ! -L $path && (-f $path || ! -e $path) ]] ||
      fail "$path: expected a plain file, not a link or another kind of file"
  done
fi
