#!/bin/sh
# Writes a greeting to stdout, where a real one would call sendmail.
#
# The payload is read with sed to need nothing that a fresh machine lacks; a real handler would use jq:
#   address=$(jq -er .payload.email)
set -eu

address=$(sed -n 's/.*"email":"\([^"]*\)".*/\1/p')
if [ -z "$address" ]; then
    echo "the event has no email" >&2
    exit 65
fi
printf 'To: %s\nSubject: Welcome\n\nThank you for registering.\n\n' "$address"
