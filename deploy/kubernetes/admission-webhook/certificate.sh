#!/usr/bin/env bash
# Makes the webhooks' certificate for a year, a CA that signs nothing else and, once, the path that the API server asks, which is a
# secret: an API server shows no certificate of its own. Gives all of it to the cluster:
#   deploy/kubernetes/admission-webhook/certificate.sh [KUBECTL OPTIONS]
# At the end it restarts the operator where there is one, and waits until that is done.
# Run it again before the year is over, or let cert-manager do the same. The CA's key is not kept.
set -euo pipefail
namespace=longhaul-system
name=longhaul-operator
kubectl=${KUBECTL:-kubectl}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 700 "$folder"

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj "/CN=$name-ca" \
  -addext basicConstraints=critical,CA:TRUE,pathlen:0 -addext keyUsage=critical,keyCertSign \
  -keyout "$folder/ca.key" -out "$folder/ca.crt" 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name.$namespace.svc" \
  -keyout "$folder/tls.key" -out "$folder/tls.csr" 2>/dev/null
printf 'subjectAltName=DNS:%s\nextendedKeyUsage=serverAuth\nkeyUsage=critical,digitalSignature\n' "$name.$namespace.svc" >"$folder/extensions"
openssl x509 -req -in "$folder/tls.csr" -CA "$folder/ca.crt" -CAkey "$folder/ca.key" -CAcreateserial -days 365 \
  -extfile "$folder/extensions" -out "$folder/tls.crt" 2>/dev/null

# One that is there stays: a configuration and the pods that know another one would not meet.
"$kubectl" "$@" -n "$namespace" get secret "$name-webhook" --ignore-not-found -o 'jsonpath={.data.path}' | base64 -d >"$folder/path"
[ -s "$folder/path" ] || printf %s "$(openssl rand -hex 32)" >"$folder/path"
"$kubectl" "$@" -n "$namespace" create secret generic "$name-webhook" --type=kubernetes.io/tls --from-file="$folder/tls.crt" \
  --from-file="$folder/tls.key" --from-file="$folder/path" --dry-run=client -o yaml | "$kubectl" "$@" apply -f -
bundle=$(base64 -w0 "$folder/ca.crt")
for hook in mutate validate; do
  if [ "$hook" = mutate ]; then kind=mutatingwebhookconfiguration; else kind=validatingwebhookconfiguration; fi
  trusts="{\"op\":\"add\",\"path\":\"/webhooks/0/clientConfig/caBundle\",\"value\":\"$bundle\"}"
  asks="{\"op\":\"add\",\"path\":\"/webhooks/0/clientConfig/service/path\",\"value\":\"/$hook/$(cat "$folder/path")\"}"
  "$kubectl" "$@" patch "$kind" trainingjobs.longhaul.dev --type=json -p "[$trusts,$asks]"
done
# An operator looks for its certificate when it starts, and serves no webhooks without one.
if [ -n "$("$kubectl" "$@" -n "$namespace" get deployment "$name" --ignore-not-found -o name)" ]; then
  echo "restarting deployment/$name in $namespace: it opens its webhooks where it finds the certificate at its start"
  "$kubectl" "$@" -n "$namespace" rollout restart "deployment/$name"
  "$kubectl" "$@" -n "$namespace" rollout status "deployment/$name" --timeout=180s
fi
