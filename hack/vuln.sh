#!/bin/bash
# Runs govulncheck: known vulnerabilities in what the binaries call. It asks the
# database at VULNDB, https://vuln.go.dev unless set. A machine without a way out
# can use a copy: https://vuln.go.dev/vulndb.zip, unpacked, and VULNDB=file:///FOLDER.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
db=${VULNDB:-https://vuln.go.dev}
case $db in
  https://* | http://* | file:///*) ;;
  *) die "VULNDB is \"$db\": want https://HOST or file:///FOLDER" ;;
esac
mkdir -p bin
(cd hack/tools/release && CGO_ENABLED=0 go build -ldflags '-s -w' -o "$root/bin/" golang.org/x/vuln/cmd/govulncheck)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
bin/govulncheck -db "$db" -tags cuda ./cmd/... 2> "$log" || status=$?
# 3 is its own word for "some were found", which it has printed.
[ $status = 0 ] || [ $status = 3 ] ||
  die "govulncheck with the database $db failed: $(tail -n 1 "$log") (without a way out, name a copy: VULNDB=file:///FOLDER, the unpacked https://vuln.go.dev/vulndb.zip)"
exit $status
