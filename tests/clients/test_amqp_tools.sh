#!/bin/bash
# amqp-tools (rabbitmq-c) against a three-node cluster: what the README shows, and a file through another node.
cd "$(dirname "$0")/../.." || exit 1
n=0; bad=0
ok() { n=$((n + 1)); if [ "$1" = 0 ]; then echo "ok $n - $2"; else bad=$((bad + 1)); echo "not ok $n - $2"; shift 2; printf '#   %s\n' "$@"; fi; }
command -v amqp-publish >/dev/null || { echo "ok 1 - amqp-tools # SKIP amqp-publish is not installed (Debian package amqp-tools)"; exit 0; }
trap 'deploy/local-cluster down' EXIT
deploy/local-cluster up 3 || { ok 1 "the cluster starts"; exit 1; }
url() { echo "amqp://guest:guest@127.0.0.1:$((5671 + $1))"; }

out=$(amqp-declare-queue --url="$(url 1)" -d -q tools 2>&1); ok $? "amqp-declare-queue declares a quorum queue by default_queue_type" "$out"
out=$(amqp-publish --url="$(url 1)" -r tools -p -b 'hello, warren' 2>&1); ok $? "amqp-publish publishes through n1" "$out"
got=$(timeout 20 amqp-get --url="$(url 2)" -q tools 2>&1); [ "$got" = 'hello, warren' ]; ok $? "amqp-get takes it through n2" "got '$got'"
for i in 1 2 3; do echo "line $i"; done | amqp-publish --url="$(url 3)" -r tools -p -l; ok $? "amqp-publish takes lines through n3"
got=$(timeout 20 amqp-consume --url="$(url 2)" -q tools -c 3 cat 2>&1); [ "$got" = $'line 1\nline 2\nline 3' ] || [ "$got" = "line 1line 2line 3" ]; ok $? "amqp-consume takes them in order through n2" "got '$got'"
out=$(amqp-delete-queue --url="$(url 3)" -q tools 2>&1); ok $? "amqp-delete-queue" "$out"
amqp-get --url="$(url 1)" -q tools >/dev/null 2>&1; [ $? -ne 0 ]; ok $? "a deleted queue is gone on every node"
echo "1..$n"; [ $bad = 0 ]
