# What people type: make run, make check, make test. The rest is for those who work on Flotilla.

SHELL = /bin/bash
VERSION ?= 0.1.0
# Everything is compiled with one set of flags, so that a package is compiled once, whatever builds or
# tests it. What the linker leaves out of a program (-s -w) need not be compiled either.
export CGO_ENABLED = 0
export GOFLAGS := $(shell go env GOFLAGS) -trimpath -gcflags=all=-dwarf=false
# Before a command: real engines, databases and brokers, installed and running.
SERVICES = .ci/services .ci/services.env && set -a && . ./.ci/services.env && set +a &&

.PHONY: build agents release packages run check test test-long attack faults conformance bench bench-fleet bench-broker soak fuzz clean

# By one go build, which compiles for the next program while it links the last.
build:
	go build -ldflags "-s -w -X main.version=$(VERSION)" -o bin/built/ ./hub ./device ./device/simulate ./hub/cli/quickstart
	for p in hub device simulate; do ln -f bin/built/$$p bin/flotilla-$$p; done

# For every platform: both programs, into bin/<platform>/; and the agents that a hub hands out to
# devices that join (--agents-dir), into bin/agents/.
release agents:
	VERSION=$(VERSION) .ci/platforms $@

# Debian packages of both programs and images of the hub, with bills of materials, into dist/.
packages: release agents
	go run ./hub/install/packages -version $(VERSION) -time $$(git log -1 --format=%ct)
	[ -z "$(RELEASE_KEY)" ] || openssl pkeyutl -sign -rawin -inkey "$(RELEASE_KEY)" -in dist/SHA256SUMS -out dist/SHA256SUMS.sig

# A hub, this machine as a node, eight simulated devices, a sample workload: all in ./data.
# SCRIPT=night lets a bad night happen to the simulated ones, in ten minutes; SCRIPT=FILE what that
# says, SPEED=3 all of it three times as fast (bin/flotilla-simulate --help).
run: build
	bin/built/quickstart $(if $(SCRIPT),--script '$(SCRIPT)') $(if $(SPEED),--speed '$(SPEED)')

# The quick loop: no race detector, and none of the real software that takes minutes: engines, a
# browser, kubectl, PostgreSQL, other versions.
check:
	go vet ./...
	go test -vet=off -short ./...

# Everything that a change has to pass. As root on Debian it installs and starts what the tests need.
test:
	$(SERVICES) .ci/test

# Before a release: what plays for hours of its own time. A whole day of two hundred devices, every
# message lost, doubled or late, a power cut at every call of a boot configuration.
test-long:
	$(SERVICES) .ci/test long

# Attacks of strangers, devices and people on a fresh hub each: a table of what held. Fifteen minutes.
attack:
	go run ./hub/e2e/attack

# What happens in the field, to real hubs, agents and engines: kills, power cuts, broken lines,
# full disks, torn files. A table of what held. Twenty minutes; FAULTS='-run ^F2$$' for a row.
faults:
	$(SERVICES) go run ./hub/e2e/faults $(FAULTS)

# Kubernetes' own conformance suite on simulated devices and on agents with Docker
# (CONFORMANCE='-engine podman': Podman). The first time it builds the suite, for ten to twenty minutes.
conformance:
	$(SERVICES) go run ./hub/e2e/conformance $(CONFORMANCE)

# Benchmarks; the fleet size is part of their names. Compare runs with benchstat.
bench:
	go test -run '^$$' -bench . -benchmem ./...

# What fleets of real connections cost the hub, plain and over TLS, and how one returns whose hub was
# killed. Twenty minutes. BENCH='-write hub/e2e/load/README.md' writes the tables there.
bench-fleet:
	go run ./hub/e2e/load -fleet $(or $(FLEET),100,1000,5000,10000,18000) -both -paced 20s $(BENCH)
	go run ./hub/e2e/load -return $(or $(RETURN),10000) $(BENCH)

# What a lease costs the hub and what it costs Mosquitto; what a million devices cost a leader.
bench-broker:
	go run ./hub/e2e/load -brokers $(or $(BROKERS),10000) $(BENCH)

# A hub with 500 devices, on which pods, nodes, pages and watches come and go, for SOAK=1h: nothing may
# grow with time. DATABASE=postgres://… for a hub with an empty database there.
soak:
	go run ./hub/e2e/load -soak $(or $(SOAK),1h) $(if $(DATABASE),-database '$(DATABASE)')

# Every fuzz target for FUZZTIME=30s; FUZZ=TheHubDoes takes those whose name has that.
fuzz:
	.ci/fuzz '$(or $(FUZZ),.)' $(or $(FUZZTIME),30s)

clean:
	rm -rf bin dist
