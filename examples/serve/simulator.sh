#!/usr/bin/env bash
# A log-likelihood in awk, fitted by qbvi over a pipe:
#
#     ./simulator.sh 'qbvi serve --prior prior.toml --out posterior.npz'
#
# Answers each point of the server with a line that has its value. Shows all other lines of the
# server except its progress.
set -euo pipefail
command=${1:?"usage: simulator.sh 'qbvi serve --prior prior.toml'"}

# id, intercept, slope, sigma -> the answer, with the data of simulator.c: y = 1 + 2 x + noise
answer() {
    awk -v id="$1" -v intercept="$2" -v slope="$3" -v sigma="$4" 'BEGIN {
        for (i = 0; i < 20; i++) {
            x = (i - 9.5) / 5
            r = (1 + 2 * x + 0.5 * sin(12.9898 * i) - intercept - slope * x) / sigma
            sum -= r * r / 2 + log(sigma) + 1.8378770664093453 / 2
        }
        printf "{\"type\": \"tell\", \"id\": %d, \"value\": %.17g}\n", id, sum
    }'
}

coproc SERVER { exec bash -c "$command"; }
server=$SERVER_PID from=${SERVER[0]} to=${SERVER[1]}
ask='"id": ([0-9]+), .*"beta": \[([^,]+), ([^]]+)\], "sigma": ([^}]+)\}'
while IFS= read -r line <&"$from"; do
    if [[ $line =~ $ask ]]; then
        answer "${BASH_REMATCH[@]:1:4}" >&"$to"
    elif [[ $line != *'"type": "progress"'* ]]; then
        echo "$line"
    fi
done
wait "$server"
