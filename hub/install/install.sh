#!/bin/sh
# Installs Flotilla's agent from its hub on this device, and joins it:
#
#     sh -s -- CA-FILE [TOKEN [JOIN-OPTION...]]
#
# CA-FILE is the hub's certificate authority. The line on the hub's page has checked the file's hash.
# Without a token the agent is only installed or updated. If TOKEN is -, a line
# "join TOKEN [JOIN-OPTION...]" follows this script, because sudo logs arguments.
set -eu

hub='@HUB@'
agents='@AGENTS@' # architectures that the hub has agents for

fail() { echo "flotilla: $*" >&2; exit 1; }

fetch() { # PATH FILE
	code=0
	if command -v curl >/dev/null; then
		for _ in 1 2 3 4 5; do
			code=0
			curl -sSf --retry 10 --cacert "$ca" -o "$2" "$hub$1" || code=$?
			case $code in
			18 | 56 | 92) sleep 1 ;; # cancelled by the hub for other devices
			*) break ;;
			esac
		done
		[ $code != 23 ] || code=unwritten
	else
		wget -q --ca-certificate="$ca" -O "$2" "$hub$1" || code=$?
		[ $code != 3 ] || code=unwritten
	fi
	case $code in
	0) ;;
	unwritten) fail "cannot write $2: free disk space or make it writable, then type the line again; nothing is changed" ;;
	*) fail "cannot fetch $hub$1. If the certificate is not valid yet, set the clock: date -s '@DATE@'" ;;
	esac
}

main() { # a function, so that nothing runs before the whole script has arrived
	[ $# -ge 1 ] || fail "the file of the hub's certificate authority is missing: copy the whole line from the hub's page, Add a device"
	ca=$1
	shift
	[ "$(id -u)" = 0 ] || fail "installing needs root: put sudo before sh"
	[ "$(uname -s)" = Linux ] || fail "the agent runs on Linux only"
	case $(uname -m) in
	x86_64) arch=amd64 ;;
	aarch64 | arm64 | armv8*) arch=arm64 ;;
	armv7*) arch=armv7 ;;
	armv6*) arch=armv6 ;;
	*) fail "no agent for the processor $(uname -m)" ;;
	esac
	# The system's word size decides: 32-bit Raspberry Pi OS runs on a 64-bit kernel. A 32-bit kernel
	# on a 64-bit processor reports armv8l.
	if [ $arch = arm64 ] && { [ "$(uname -m)" = armv8l ] || [ "$(getconf LONG_BIT 2>/dev/null)" = 32 ]; }; then
		arch=armv7
	fi
	case " $agents " in
	*" $arch "*) ;;
	*) fail "the hub has no agent for $arch ($(uname -m)): put it into its --agents-dir" ;;
	esac

	# Download all files before replacing the first: with half of a unit the agent
	# could not start.
	bin=/usr/local/bin/flotilla-device
	units=/etc/systemd/system
	new=$bin.new
	trap 'rm -f "$new" $units/flotilla-*.new' EXIT
	mkdir -p /usr/local/bin
	fetch "/install/flotilla-device-$arch" "$new"
	chmod 0755 "$new"
	version=$("$new" version) || fail "the agent for $arch does not run on this machine ($(uname -m)); nothing is changed"
	systemd=
	if [ -d /run/systemd/system ]; then
		systemd=yes
		for unit in @UNITS@; do
			fetch "/install/$unit" "$units/$unit.new"
		done
	fi
	sync
	mv -f "$new" "$bin"
	echo "flotilla: $bin is $version"
	if [ -n "$systemd" ]; then
		for unit in @UNITS@; do
			mv -f "$units/$unit.new" "$units/$unit"
		done
		systemctl daemon-reload
	fi
	command -v docker >/dev/null || command -v podman >/dev/null || command -v balena-engine >/dev/null ||
		echo "flotilla: no container engine found: apt install docker.io, or podman" >&2

	if [ "${1-}" = - ]; then
		: # the next line joins
	elif [ $# -gt 0 ]; then
		join "$@"
	elif [ -n "$systemd" ]; then
		systemctl try-restart flotilla-device
	fi
}

join() { # TOKEN [JOIN-OPTION...]
	token=$1
	shift
	code=0
	"$bin" join "$hub" "$@" --token - <<-EOF || code=$?
		$token
	EOF
	if [ $code != 0 ]; then
		# An agent that has joined before continues with the new program.
		[ -z "$systemd" ] || systemctl try-restart flotilla-device
		exit $code
	fi
	if [ -z "$systemd" ]; then
		echo "flotilla: systemd does not run here: start $bin run with your init"
		return
	fi
	systemctl enable flotilla-device
	systemctl restart flotilla-device
}

main "$@" </dev/null # the shell reads the next line
