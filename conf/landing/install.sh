#!/usr/bin/env bash
# Run as root: installs the units, the scripts, and the user. Existing settings and the modes of existing folders are
# not changed. On a machine without systemd, the units have no effect. DESTDIR=… installs below another root, for a
# package or a machine image.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "${BASH_SOURCE[0]}")"
root=${DESTDIR:-}
units=$root/etc/systemd/system
is_live=
[[ -n $root || ! -d /run/systemd/system ]] || is_live=yes

[[ -d $root/etc/pg-landing ]] || install -d "$root/etc/pg-landing"
[[ -e $root/etc/pg-landing/shop.env ]] || install -m 644 shop.env "$root/etc/pg-landing/shop.env"

# Older versions rotated in a unit of their own; pg-landing@ does that now.
former=("$units"/pg-landing-rotate@.{service,timer} "$units"/timers.target.wants/pg-landing-rotate@*.timer)
for folder in "$units"/pg-landing-rotate@*.d; do
  echo "$folder has no effect anymore: move its settings to pg-landing@, or remove it" >&2
done
is_former=
[[ ! -e ${former[0]} ]] || is_former=yes
[[ -z $is_live || -z $is_former ]] || systemctl stop 'pg-landing-rotate@*.timer'
rm -f "${former[@]}"

install -D -m 644 -t "$units" ./*.service ./*.timer
install -D -m 755 -t "$root/usr/local/lib/pg-landing" \
  state.sh landed.sh receive.sh rotate.sh copy.sh watch.sh run.sh upload.sh
install -D -m 644 -t "$root/usr/local/lib/pg-landing" ./*.sql
install -D -m 644 pg-landing.sysusers "$root/usr/lib/sysusers.d/pg-landing.conf"
[[ -z $root ]] || exit 0
if [[ -n $is_live ]]; then
  systemd-sysusers pg-landing.conf
  systemctl daemon-reload
  # A service of the older version still runs the receiver only.
  [[ -z $is_former ]] || systemctl try-restart 'pg-landing@*.service'
else
  id pg-landing >/dev/null 2>&1 || useradd --system --home-dir /var/lib/pg-landing pg-landing
  [[ -d /var/lib/pg-landing ]] || install -d -m 750 -o pg-landing -g pg-landing /var/lib/pg-landing
fi
