#!/bin/bash
# Starts an engine with the bundled model and tries OpenAI's client for
# JavaScript on it. Needs node, and npm's registry for the client.
set -euo pipefail
cd "$(dirname "$0")"
folder=$(mktemp -d)
engine=
: >"$folder/log"
trap '[ -z "$engine" ] || kill "$engine" 2>/dev/null || true; rm -rf "$folder"' EXIT
(cd ../.. && CGO_ENABLED=0 go build -o "$folder/outrider-engine" ./cmd/outrider-engine)
npm install --no-package-lock --no-audit --no-fund --silent
"$folder/outrider-engine" serve --port 0 --admin-port 0 --chat-template template.jinja --tool-call-parser hermes 2>"$folder/log" &
engine=$!
for ((i = 0; ; i++)); do
  url=$(sed -n 's/.*msg=listening url=\(\S*\).*/\1/p' "$folder/log")
  if [ -n "$url" ] && curl -sf "$url/readyz" >/dev/null; then break; fi
  if ! kill -0 "$engine" 2>/dev/null || [ "$i" -ge 600 ]; then
    cat "$folder/log" >&2
    exit 1
  fi
  sleep 0.1
done
OPENAI_BASE_URL="$url/v1" npm test --silent
