#!/usr/bin/env bash
# upload-s3.sh FILE: copies a landed file to UPLOAD_TO, such as s3://lake/landing/shop. For UPLOAD in shop.env.
# S3 shows an object once it is complete, and a repeated upload replaces it.
set -euo pipefail
file=${1:?expected a file}
exec aws s3 cp --only-show-errors "$file" "${UPLOAD_TO:?}/${file##*/}"
