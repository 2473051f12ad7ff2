#!/usr/bin/env bash
# upload.sh FILE: stores a landed file in UPLOAD_TO under its name. For UPLOAD in shop.env. It can be called again: a
# stored file that is equal counts, and another one is an error and stays.
#
# UPLOAD_TO=lake:bucket/landing/shop: a remote of rclone, whose settings and credentials are in the environment or in
# rclone's configuration file. rclone compares the size and the hash of what the store has. Only object stores (S3, ADLS,
# GCS): they show an object once it is complete.
# UPLOAD_TO=dbfs:/Volumes/main/landing/shop: a volume of Databricks, for which rclone has no backend.
set -euo pipefail
LC_ALL=C
file=${1:?expected a file} to=${UPLOAD_TO:?expected where to store files, such as lake:bucket/landing/shop}
name=${file##*/} to=${to%/}

fail() {
  echo "${name@Q} is not uploaded: $*" >&2
  exit 1
}

[[ $file == /* && -f $file ]] || fail "expected the absolute path of a file"

if [[ $to == dbfs:/Volumes/* ]]; then
  # Replaces no file, and some versions report one that exists as an error: the comparison decides.
  databricks fs cp "$file" "$to/$name" || true
  databricks fs cp --overwrite "$to/$name" "$file.stored"
  cmp --silent "$file" "$file.stored" || fail "$to has another file of this name"
  rm "$file.stored"
  exit
fi

# A remote's name, so that no setting, which may be a secret, is in the arguments.
[[ $to =~ ^[A-Za-z0-9_][A-Za-z0-9_.+@\ -]*: ]] || fail "UPLOAD_TO: expected the name of a remote, a colon, and a path"
# A missing bucket is an error: rclone would ask to create one, which needs another right.
export RCLONE_S3_NO_CHECK_BUCKET=true RCLONE_GCS_NO_CHECK_BUCKET=true RCLONE_AZUREBLOB_NO_CHECK_CONTAINER=true
features=$(rclone backend features --log-level=ERROR "${to%%:*}:")
[[ $features == *'"BucketBased": true'* ]] || fail "UPLOAD_TO=$to: expected an object store, such as S3, ADLS, or GCS"
# Only `copy` of a folder heeds --immutable.
rclone copy --files-from-raw=- --no-traverse --checksum --immutable --log-level=ERROR "${file%/*}" "$to" <<<"$name"
# It ends with 0, too, if it takes no file for the named one.
stored=$(rclone lsf --format=s --log-level=ERROR "$to/$name")
[[ $stored == "$(stat --format=%s "$file")" ]] || fail "$to has no file with this name and size"
