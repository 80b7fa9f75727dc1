# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_relayctl_global_optspecs
    string join \n store= database= prefix= profile= o/output= q/quiet v/verbose time= color= connect-timeout= y/yes h/help V/version
end

function __fish_relayctl_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_relayctl_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_relayctl_using_subcommand
    set -l cmd (__fish_relayctl_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c relayctl -n "__fish_relayctl_needs_command" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_needs_command" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_needs_command" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_needs_command" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_needs_command" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_needs_command" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_needs_command" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_needs_command" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_needs_command" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_needs_command" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_needs_command" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_needs_command" -s V -l version -d 'Print version'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "setup" -d 'Create or check collections and indexes'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "publish" -d 'Append events'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "list" -d 'List deliveries'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "show" -d 'Show one delivery with its event, its history, and what blocks it'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "explain" -d 'Explain why a delivery runs or does not, and what would help'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "errors" -d 'Group errors by handler and by what they have in common'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "stats" -d 'Count deliveries by handler and status'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "check" -d 'Compare the state with thresholds, for monitoring'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "requeue" -d 'Bring dead deliveries back'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "bury" -d 'Give up pending and processing deliveries'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "purge" -d 'Delete what finished long ago'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "keys" -d 'List and prune the counters of ordering keys'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "recover" -d 'Return deliveries with an expired lease to pending'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "export" -d 'Write deliveries with their events as JSON lines'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "import" -d 'Store what an export wrote'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "backfill" -d 'Give a handler the events that came before it'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "pause" -d 'Pause a handler for the whole fleet'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "resume" -d 'Let a paused handler go on'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "run" -d 'Be a worker: hand deliveries to commands'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "completions" -d 'Print the completions of a shell'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "man" -d 'Print a manual page, or write all of them'
complete -c relayctl -n "__fish_relayctl_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c relayctl -n "__fish_relayctl_using_subcommand setup" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand setup" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand setup" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand setup" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand setup" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand setup" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand setup" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand setup" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand setup" -l check -d 'Compare only: report what is missing, in the way or not as it has to be, and change nothing'
complete -c relayctl -n "__fish_relayctl_using_subcommand setup" -l print -d 'Print a mongosh script that does the same, without connecting to anything'
complete -c relayctl -n "__fish_relayctl_using_subcommand setup" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand setup" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand setup" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand setup" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l payload -d 'The content: JSON, @FILE, or - for standard input' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l key -d 'The ordering key: events of one key reach a handler one at a time, in the order of their commits' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l id -d 'The id of the event, which makes it safe to repeat the command; a new one by default' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l handler -d 'A handler that receives the event; may be given more than once' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l header -d 'A fact about the event that is not part of its content; may be given more than once' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l delay -d 'Not before this much time has passed: 90s, 15m, 2h, 7d' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l at -d 'Not before this instant: RFC 3339 with an offset' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l correlation-id -d 'What groups the work of one request' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l causation-id -d 'The event or command that caused this one' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l aggregate-id -d 'The domain object that it is about' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l metadata -d 'Anything else to keep with the event: JSON, @FILE, or - for standard input' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l max-attempts -d 'After how many attempts a delivery of it is dead; by default each handler\'s own limit' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l handlers -d 'Take the handlers that subscribe to the type from this file, when none is named' -r -F
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l jsonl -d 'Read many events from this file, one JSON object a line; - is standard input' -r -F
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l batch-size -d 'With --jsonl, append this many lines in one transaction' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand publish" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l status -d 'Only those in this status; may be given more than once' -r -f -a "pending\t''
processing\t''
completed\t''
dead\t''"
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l handler -d 'Only those of this handler' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l type -d 'Only events of this type; `order.*` means all that begin with `order.`' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l key -d 'Only those of this ordering key' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l event -d 'Only those of this event' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l error -d 'Only those whose last error contains this text; upper and lower case are alike' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l group -d 'Only those whose last error is of this group, as `relayctl errors` names it; may be given more than once' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l since -d 'Only those created at or after this time: RFC 3339 with an offset, or how long ago (15m, 2h, 7d)' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l until -d 'Only those created before this time' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l finished-before -d 'Only those completed or dead since before this time' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l min-attempts -d 'Only those with at least this many attempts' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l lane -d 'Only unfinished ones in this lane: ready, or parked behind a long blocked key' -r -f -a "ready\t''
parked\t''"
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l overdue -d 'Only unfinished ones that have been due for at least this long' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l limit -d 'At most this many' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l sort -d 'Order by the time of creation, of the last change, or at which they are due' -r -f -a "created\t''
updated\t''
due\t''"
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l cursor -d 'Go on behind this place, which an earlier listing with the same options printed' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l all -d 'All of them'
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -l reverse -d 'Latest first'
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand list" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand show" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand show" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand show" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand show" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand show" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand show" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand show" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand show" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand show" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand show" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand show" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand show" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand explain" -l handler -d 'Explain the first unfinished delivery of this handler and --key' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand explain" -l key -d 'The ordering key' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand explain" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand explain" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand explain" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand explain" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand explain" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand explain" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand explain" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand explain" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand explain" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand explain" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand explain" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand explain" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l status -d 'Only those in this status; may be given more than once' -r -f -a "pending\t''
processing\t''
completed\t''
dead\t''"
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l handler -d 'Only those of this handler' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l type -d 'Only events of this type; `order.*` means all that begin with `order.`' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l key -d 'Only those of this ordering key' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l event -d 'Only those of this event' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l error -d 'Only those whose last error contains this text; upper and lower case are alike' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l group -d 'Only those whose last error is of this group, as `relayctl errors` names it; may be given more than once' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l since -d 'Only those created at or after this time: RFC 3339 with an offset, or how long ago (15m, 2h, 7d)' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l until -d 'Only those created before this time' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l finished-before -d 'Only those completed or dead since before this time' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l min-attempts -d 'Only those with at least this many attempts' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l lane -d 'Only unfinished ones in this lane: ready, or parked behind a long blocked key' -r -f -a "ready\t''
parked\t''"
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l overdue -d 'Only unfinished ones that have been due for at least this long' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l limit -d 'At most this many groups' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -l all -d 'All of them'
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand errors" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand stats" -l by -d 'What to group by' -r -f -a "handler\t'The handler'"
complete -c relayctl -n "__fish_relayctl_using_subcommand stats" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand stats" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand stats" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand stats" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand stats" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand stats" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand stats" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand stats" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand stats" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand stats" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand stats" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand stats" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l handler -d 'Only deliveries of this handler; may be given more than once' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l format -d 'How the report is written; by default nagios, and json with -o json' -r -f -a "nagios\t'One line with performance data, as plugins of Nagios write it'
prometheus\t'Metrics in the text format of Prometheus'
json\t'One JSON document; durations are in milliseconds'"
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l outfile -d 'Write the report to this file instead of standard output' -r -F
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l dead-warn -d 'Warn from this many dead deliveries on' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l dead-crit -d 'Critical from this many dead deliveries on' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l pending-warn -d 'Warn from this many waiting deliveries on' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l pending-crit -d 'Critical from this many waiting deliveries on' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l oldest-warn -d 'Warn when the oldest unfinished delivery has been due for this long' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l oldest-crit -d 'Critical when the oldest unfinished delivery has been due for this long' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l expired-warn -d 'Warn from this many leases on that ran out and that nobody took over' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l expired-crit -d 'Critical from this many leases on that ran out and that nobody took over' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -l per-handler -d 'Look at each handler by itself'
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l delay -d 'Not before this much time has passed: 90s, 15m, 2h, 7d' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l at -d 'Not before this instant: RFC 3339 with an offset' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l reason -d 'Why; becomes part of the report' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l limit -d 'Change at most this many of those that the filter selects, the oldest first' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l rate -d 'Change no more than so many in a second (50/s), minute (600/m) or hour (1000/h)' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l ramp -d 'Begin with a tenth of the rate, and reach all of it after this time: 90s, 15m' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l status -d 'Only those in this status; may be given more than once' -r -f -a "pending\t''
processing\t''
completed\t''
dead\t''"
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l handler -d 'Only those of this handler' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l type -d 'Only events of this type; `order.*` means all that begin with `order.`' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l key -d 'Only those of this ordering key' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l event -d 'Only those of this event' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l error -d 'Only those whose last error contains this text; upper and lower case are alike' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l group -d 'Only those whose last error is of this group, as `relayctl errors` names it; may be given more than once' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l since -d 'Only those created at or after this time: RFC 3339 with an offset, or how long ago (15m, 2h, 7d)' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l until -d 'Only those created before this time' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l finished-before -d 'Only those completed or dead since before this time' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l min-attempts -d 'Only those with at least this many attempts' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l lane -d 'Only unfinished ones in this lane: ready, or parked behind a long blocked key' -r -f -a "ready\t''
parked\t''"
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l overdue -d 'Only unfinished ones that have been due for at least this long' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -s n -l dry-run -d 'Only say what would be changed'
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand requeue" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l reason -d 'Why; recorded as the last error of each delivery; by default it says who buried it' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l limit -d 'Change at most this many of those that the filter selects, the oldest first' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l rate -d 'Change no more than so many in a second (50/s), minute (600/m) or hour (1000/h)' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l ramp -d 'Begin with a tenth of the rate, and reach all of it after this time: 90s, 15m' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l status -d 'Only those in this status; may be given more than once' -r -f -a "pending\t''
processing\t''
completed\t''
dead\t''"
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l handler -d 'Only those of this handler' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l type -d 'Only events of this type; `order.*` means all that begin with `order.`' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l key -d 'Only those of this ordering key' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l event -d 'Only those of this event' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l error -d 'Only those whose last error contains this text; upper and lower case are alike' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l group -d 'Only those whose last error is of this group, as `relayctl errors` names it; may be given more than once' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l since -d 'Only those created at or after this time: RFC 3339 with an offset, or how long ago (15m, 2h, 7d)' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l until -d 'Only those created before this time' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l finished-before -d 'Only those completed or dead since before this time' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l min-attempts -d 'Only those with at least this many attempts' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l lane -d 'Only unfinished ones in this lane: ready, or parked behind a long blocked key' -r -f -a "ready\t''
parked\t''"
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l overdue -d 'Only unfinished ones that have been due for at least this long' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -s n -l dry-run -d 'Only say what would be changed'
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand bury" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand purge" -l completed-before -d 'Delete deliveries that were completed before this time: how long ago (7d), or RFC 3339 with an offset' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand purge" -l dead-before -d 'Delete deliveries that have been dead since before this time; by default none' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand purge" -l batch-size -d 'Delete this many deliveries at a time' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand purge" -l max -d 'Delete at most this many deliveries in all' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand purge" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand purge" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand purge" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand purge" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand purge" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand purge" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand purge" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand purge" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand purge" -s n -l dry-run -d 'Only say how many would be deleted'
complete -c relayctl -n "__fish_relayctl_using_subcommand purge" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand purge" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand purge" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand purge" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and not __fish_seen_subcommand_from list prune help" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and not __fish_seen_subcommand_from list prune help" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and not __fish_seen_subcommand_from list prune help" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and not __fish_seen_subcommand_from list prune help" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and not __fish_seen_subcommand_from list prune help" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and not __fish_seen_subcommand_from list prune help" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and not __fish_seen_subcommand_from list prune help" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and not __fish_seen_subcommand_from list prune help" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and not __fish_seen_subcommand_from list prune help" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and not __fish_seen_subcommand_from list prune help" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and not __fish_seen_subcommand_from list prune help" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and not __fish_seen_subcommand_from list prune help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and not __fish_seen_subcommand_from list prune help" -f -a "list" -d 'List the counters of ordering keys, by key'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and not __fish_seen_subcommand_from list prune help" -f -a "prune" -d 'Delete the counters of keys that have no delivery any more'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and not __fish_seen_subcommand_from list prune help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from list" -l prefix-match -d 'Only keys that begin with this text' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from list" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from list" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from list" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from list" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from list" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from list" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from list" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from list" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from list" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from list" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from list" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from prune" -l batch-size -d 'Look at this many counters in one transaction' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from prune" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from prune" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from prune" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from prune" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from prune" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from prune" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from prune" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from prune" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from prune" -s n -l dry-run -d 'Only say how many counters would be deleted'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from prune" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from prune" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from prune" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from prune" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from help" -f -a "list" -d 'List the counters of ordering keys, by key'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from help" -f -a "prune" -d 'Delete the counters of keys that have no delivery any more'
complete -c relayctl -n "__fish_relayctl_using_subcommand keys; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c relayctl -n "__fish_relayctl_using_subcommand recover" -l handler -d 'Only deliveries of this handler; may be given more than once' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand recover" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand recover" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand recover" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand recover" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand recover" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand recover" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand recover" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand recover" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand recover" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand recover" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand recover" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand recover" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l file -d 'Write to this file, which gets its name once it is complete; by default to standard output' -r -F
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l status -d 'Only those in this status; may be given more than once' -r -f -a "pending\t''
processing\t''
completed\t''
dead\t''"
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l handler -d 'Only those of this handler' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l type -d 'Only events of this type; `order.*` means all that begin with `order.`' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l key -d 'Only those of this ordering key' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l event -d 'Only those of this event' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l error -d 'Only those whose last error contains this text; upper and lower case are alike' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l group -d 'Only those whose last error is of this group, as `relayctl errors` names it; may be given more than once' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l since -d 'Only those created at or after this time: RFC 3339 with an offset, or how long ago (15m, 2h, 7d)' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l until -d 'Only those created before this time' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l finished-before -d 'Only those completed or dead since before this time' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l min-attempts -d 'Only those with at least this many attempts' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l lane -d 'Only unfinished ones in this lane: ready, or parked behind a long blocked key' -r -f -a "ready\t''
parked\t''"
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l overdue -d 'Only unfinished ones that have been due for at least this long' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -l force -d 'Replace the file if it is there'
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand export" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand import" -l handler -d 'Make them deliveries for this handler; OLD=NEW, which may be given more than once, only those for OLD' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand import" -l batch-size -d 'Import this many lines in one transaction' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand import" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand import" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand import" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand import" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand import" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand import" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand import" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand import" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand import" -l reset -d 'Start each delivery from the beginning: pending, due now, without attempts; its errors are kept'
complete -c relayctl -n "__fish_relayctl_using_subcommand import" -l keep-attempts -d 'Keep status and attempts; this is the default'
complete -c relayctl -n "__fish_relayctl_using_subcommand import" -s n -l dry-run -d 'Only say what would be done'
complete -c relayctl -n "__fish_relayctl_using_subcommand import" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand import" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand import" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand import" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -l handler -d 'The handler that gets the deliveries' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -l type -d 'Of which events: a type, all that begin alike (`order.*`), or all (`*`)' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -l since -d 'Only events created at or after this time: RFC 3339 with an offset, or how long ago (15m, 2h, 7d)' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -l until -d 'Only events created before this time' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -l limit -d 'Create at most this many' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -l rate -d 'Change no more than so many in a second (50/s), minute (600/m) or hour (1000/h)' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -l ramp -d 'Begin with a tenth of the rate, and reach all of it after this time: 90s, 15m' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -s n -l dry-run -d 'Only say how many would be created'
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand backfill" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand pause" -l until -d 'When it resumes by itself: RFC 3339 with an offset, or after how long (30m, 2h, 7d); otherwise never' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand pause" -l reason -d 'Why; shown to whoever looks at the handler' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand pause" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand pause" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand pause" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand pause" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand pause" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand pause" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand pause" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand pause" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand pause" -s n -l dry-run -d 'Change nothing, and tell what would change'
complete -c relayctl -n "__fish_relayctl_using_subcommand pause" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand pause" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand pause" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand pause" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand resume" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand resume" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand resume" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand resume" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand resume" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand resume" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand resume" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand resume" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand resume" -s n -l dry-run -d 'Change nothing, and tell what would change'
complete -c relayctl -n "__fish_relayctl_using_subcommand resume" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand resume" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand resume" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand resume" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l handler -d 'A handler and the line that `sh -c` runs for it; may be given more than once' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l handlers -d 'A file that describes handlers: see examples/handlers/handlers.toml' -r -F
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l type -d 'The event types that HANDLER is meant for; may be given more than once' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l max-deliveries -d 'End after this many deliveries' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l concurrency -d 'How many deliveries run at once over all handlers; by default as many as the handlers\' own limits allow' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l timeout -d 'How long one attempt may take; 30s by default' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l lease -d 'How long a lease lasts: so long after a worker died, another one takes over at the latest; 60s by default' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l max-attempts -d 'After how many attempts a delivery is dead, unless its event says otherwise; 5 by default' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l grace -d 'How long commands may go on after the first signal' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l poll-interval -d 'The longest pause between two looks for work' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l metrics -d 'Answer HTTP here: /metrics for Prometheus, /healthz and /readyz; such as 127.0.0.1:9187, or :9187 for all addresses' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l log-format -d 'How the log on standard error is written' -r -f -a "human\t'A line of words'
json\t'A JSON object a line; fields are only ever added'"
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l once -d 'End when nothing is due any more'
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l until-empty -d 'End when nothing of these handlers is unfinished, delayed retries included'
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -l check -d 'Check the handlers and their commands and list them, without connecting to anything'
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand completions" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand completions" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand completions" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand completions" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand completions" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand completions" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand completions" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand completions" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand completions" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand completions" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand completions" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand completions" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand man" -l store -d 'Where the store is: mongodb://HOST:PORT/DATABASE?replicaSet=NAME' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand man" -l database -d 'The database; by default the one in the URL [environment: RELAYCTL_DATABASE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand man" -l prefix -d 'What the names of the collections begin with; by default relaybus_ [environment: RELAYCTL_PREFIX]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand man" -l profile -d 'The profile to use from the configuration file [environment: RELAYCTL_PROFILE]' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand man" -s o -l output -d 'How data is written to standard output; by default as a table' -r -f -a "table\t'For people: columns, or sentences'
json\t'One JSON document'
jsonl\t'One JSON document a line'
csv\t'Comma-separated values with a header (RFC 4180)'
ids\t'Identifiers, one a line'"
complete -c relayctl -n "__fish_relayctl_using_subcommand man" -l time -d 'How times are shown in tables; by default relative to now' -r -f -a "relative\t'From now: `3m ago`, `in 5s`'
utc\t'RFC 3339 in UTC'
local\t'RFC 3339 in the time zone of this machine'"
complete -c relayctl -n "__fish_relayctl_using_subcommand man" -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, as NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM say'
always\t'Everywhere'
never\t'Nowhere'"
complete -c relayctl -n "__fish_relayctl_using_subcommand man" -l connect-timeout -d 'How long to look for the server' -r
complete -c relayctl -n "__fish_relayctl_using_subcommand man" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c relayctl -n "__fish_relayctl_using_subcommand man" -s v -l verbose -d 'Say more about how things are done'
complete -c relayctl -n "__fish_relayctl_using_subcommand man" -s y -l yes -d 'Answer every question with yes'
complete -c relayctl -n "__fish_relayctl_using_subcommand man" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "setup" -d 'Create or check collections and indexes'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "publish" -d 'Append events'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "list" -d 'List deliveries'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "show" -d 'Show one delivery with its event, its history, and what blocks it'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "explain" -d 'Explain why a delivery runs or does not, and what would help'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "errors" -d 'Group errors by handler and by what they have in common'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "stats" -d 'Count deliveries by handler and status'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "check" -d 'Compare the state with thresholds, for monitoring'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "requeue" -d 'Bring dead deliveries back'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "bury" -d 'Give up pending and processing deliveries'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "purge" -d 'Delete what finished long ago'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "keys" -d 'List and prune the counters of ordering keys'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "recover" -d 'Return deliveries with an expired lease to pending'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "export" -d 'Write deliveries with their events as JSON lines'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "import" -d 'Store what an export wrote'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "backfill" -d 'Give a handler the events that came before it'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "pause" -d 'Pause a handler for the whole fleet'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "resume" -d 'Let a paused handler go on'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "run" -d 'Be a worker: hand deliveries to commands'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "completions" -d 'Print the completions of a shell'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "man" -d 'Print a manual page, or write all of them'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and not __fish_seen_subcommand_from setup publish list show explain errors stats check requeue bury purge keys recover export import backfill pause resume run completions man help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and __fish_seen_subcommand_from keys" -f -a "list" -d 'List the counters of ordering keys, by key'
complete -c relayctl -n "__fish_relayctl_using_subcommand help; and __fish_seen_subcommand_from keys" -f -a "prune" -d 'Delete the counters of keys that have no delivery any more'
