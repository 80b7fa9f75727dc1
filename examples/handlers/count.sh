#!/bin/sh
# Counts orders by their type, in line mode: it stays, and answers line after line.
#
# The ids are cut out by the shell alone, which needs no process for a delivery; a real handler would be written in a
# language that reads JSON. What stands in an event cannot look like the id: its quotes have a backslash in front.
set -eu

file=$1
touch "$file"

while IFS= read -r event; do
    id=${event##*'"deliveryId":"'}
    id=${id%%'"'*}
    type=${event#*'"type":"'}
    type=${type%%'"'*}
    # One write of less than a page, so that several of these can share a file.
    if printf '%s %s\n' "$type" "$id" >> "$file"; then
        printf '{"id":"%s","ok":true}\n' "$id"
    else
        printf '{"id":"%s","error":"cannot write","retry_after":"30s"}\n' "$id"
    fi
done
