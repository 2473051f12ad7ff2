#!/usr/bin/env bash
# Run as root: installs the units, the scripts, and the user. Existing settings and the modes of existing folders are
# not changed. On a machine without systemd, the units have no effect. DESTDIR=… installs below another root, for a
# package or a machine image.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
root=${DESTDIR:-}

[[ -d $root/etc/pg-landing ]] || install -d "$root/etc/pg-landing"
[[ -e $root/etc/pg-landing/shop.env ]] || install -m 644 shop.env "$root/etc/pg-landing/shop.env"
install -D -m 644 -t "$root/etc/systemd/system" ./*.service ./*.timer
install -D -m 755 -t "$root/usr/local/lib/pg-landing" \
  state.sh landed.sh receive.sh rotate.sh copy.sh watch.sh run.sh upload-s3.sh
install -D -m 644 -t "$root/usr/local/lib/pg-landing" ./*.sql
install -D -m 644 pg-landing.sysusers "$root/usr/lib/sysusers.d/pg-landing.conf"
[[ -z $root ]] || exit 0
if [[ -d /run/systemd/system ]]; then
  systemd-sysusers pg-landing.conf
  systemctl daemon-reload
else
  id pg-landing >/dev/null 2>&1 || useradd --system --home-dir /var/lib/pg-landing pg-landing
  [[ -d /var/lib/pg-landing ]] || install -d -m 750 -o pg-landing -g pg-landing /var/lib/pg-landing
fi
