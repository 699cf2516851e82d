#!/bin/sh
# Installs Flotilla's agent from its hub and joins. systemd repeats it until it succeeds.
set -eu
hub='@HUB@'
ca=@DIR@/ca.crt

# A board without a battery starts with an old clock, for which the hub's certificate is not valid yet.
[ "$(date +%s)" -ge @NOW@ ] || date -s @@NOW@

get() { # PATH
	if command -v curl >/dev/null; then
		curl -sSf --cacert "$ca" "$hub$1"
	else
		wget -q --ca-certificate="$ca" -O - "$hub$1"
	fi
}

script=$(get /install)
printf '%s\n%s\n' "$script" 'join @TOKEN@' | sh -s -- "$ca" -
systemctl disable flotilla-firstboot
rm -r @DIR@ /etc/systemd/system/flotilla-firstboot.service
