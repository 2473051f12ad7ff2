#!/usr/bin/env bash
# As root: puts units, scripts and the user where systemd looks for them. Settings that are there stay as they are.
# DESTDIR=… puts them below another root, for a package or a picture of a machine.
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
