#!/usr/bin/env bash
# Run as root: installs the units, the scripts and the user for systemd. Existing settings are not changed.
# DESTDIR=… installs below another root, for a package or a machine image.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
root=${DESTDIR:-}

install -d "$root/etc/pg-landing"
[[ -e $root/etc/pg-landing/shop.env ]] || install -m 644 shop.env "$root/etc/pg-landing/shop.env"
install -D -m 644 -t "$root/etc/systemd/system" ./*.service ./*.timer
install -D -m 755 -t "$root/usr/local/lib/pg-landing" landed.sh rotate.sh copy.sh watch.sh
install -D -m 644 -t "$root/usr/local/lib/pg-landing" ./*.sql
install -D -m 644 pg-landing.sysusers "$root/usr/lib/sysusers.d/pg-landing.conf"
if [[ -z $root ]]; then
  systemd-sysusers pg-landing.conf
  systemctl daemon-reload
fi
