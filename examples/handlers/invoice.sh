#!/bin/sh
# Says what is to be done about a paid order, in one transaction with the completion of its delivery: one JSON object a
# line, on stdout. Nothing of it is done when this script fails, and nothing is done twice when it is run again.
#
# The event is JSON already, and goes into the lines as it is. What is taken out of it needs a tool that quotes, as jq does:
#   jq -c '{write: {collection: "orders", op: "updateOne", filter: {_id: .payload.orderId}, update: {"$set": {paid: true}}}}'
set -eu

IFS= read -r event
now=$(date -u +%Y-%m-%dT%H:%M:%SZ)

# What a write holds is extended JSON: this is a date, and not an object with a strange member.
printf '{"write": {"collection": "invoices", "op": "insertOne", "document": {"madeAt": {"$date": "%s"}, "for": %s}}}\n' \
    "$now" "$event"

# A counter. The first invoice makes it.
printf '{"write": {"collection": "invoice_totals", "op": "updateOne", "upsert": true, "filter": {"_id": "all"}, '
printf '"update": {"$inc": {"count": 1}}}}\n'

# An event, for the handlers that subscribe to its type. Its causationId is the id of the event at hand.
printf '{"publish": {"type": "invoice.made.v1", "payload": {"for": %s}}}\n' "$event"
