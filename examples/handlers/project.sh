#!/bin/sh
# Keeps one file for each order, with its latest event: a read model in its plainest form.
#
# Deliveries come at least once. Writing the same file again with the same content does no harm, so that nothing has to
# be remembered.
set -eu

directory=$1
mkdir -p "$directory"

# The key is the order's number. An event without one will not have one the next time either: exit 65 gives it up.
if [ -z "${RELAY_KEY:-}" ]; then
    echo "event $RELAY_EVENT_ID of type $RELAY_EVENT_TYPE has no key" >&2
    exit 65
fi

# A key may hold any character, and a file name must not.
name=$(printf '%s' "$RELAY_KEY" | tr -c 'A-Za-z0-9_-' '_')

# Written aside and moved, so that a reader never sees half of it.
temporary="$directory/.$name.$RELAY_DELIVERY_ID"
cat > "$temporary"
mv "$temporary" "$directory/$name.json"
