# What people type: make run, make test. The rest is for those who work on Flotilla.

VERSION ?= 0.1.0
GOFLAGS_BUILD = -trimpath $(UNDEBUGGED) -ldflags "-s -w -X main.version=$(VERSION)"
# What the linker leaves out of a program (-s -w) the compiler need not make: an eighth of its time.
UNDEBUGGED = -gcflags=all=-dwarf=false
PLATFORMS = linux/amd64 linux/arm64 linux/arm/v7 linux/arm/v6
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

# What is built here, by go vet and by a test alike, is built with the same flags where it can be:
# a package that is built with others is compiled once more, and all of them take minutes.
run check test test-beside test-static test-plain test-go test-long test-quick attack faults conformance bench bench-fleet bench-broker soak: \
	export GOFLAGS := $(shell go env GOFLAGS) $(UNDEBUGGED)
GORUN = CGO_ENABLED=0 go run -trimpath

.PHONY: build agents run check test test-beside test-static test-plain test-cross test-go test-long test-quick attack faults conformance bench bench-fleet bench-broker soak fuzz clean

build:
	CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o bin/flotilla-hub ./hub
	CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o bin/flotilla-device ./device
	CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o bin/flotilla-simulate ./device/simulate

# The agents that a hub hands out to devices that join (--agents-dir), into bin/agents/.
agents:
	@for p in $(PLATFORMS); do \
		IFS=/ read -r os arch arm <<< "$$p"; \
		CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch GOARM=$${arm#v} go build $(GOFLAGS_BUILD) -o bin/agents/flotilla-device-$$arch$$arm ./device || exit 1; \
	done; ls -l bin/agents

# A hub, this machine as a node, eight simulated devices, a sample workload: all in ./data.
# SCRIPT=night lets a bad night happen to the simulated ones, in ten minutes; SCRIPT=FILE what that
# says, SPEED=3 all of it three times as fast (bin/flotilla-simulate --help).
run: build
	$(GORUN) ./hub/cli/quickstart $(if $(SCRIPT),--script '$(SCRIPT)') $(if $(SPEED),--speed '$(SPEED)')

# The quick loop: no race detector, and none of the real software that takes minutes: engines, a
# browser, kubectl, PostgreSQL, other versions. A few minutes on two cores.
check: export CGO_ENABLED = 0
check:
	go vet -trimpath ./...
	go test -trimpath -short ./...

# Everything. As root on Debian it installs and starts what the tests need.
test:
	@.ci/services .ci/services.env
	@set -a && . ./.ci/services.env && set +a && $(MAKE) --no-print-directory -j2 test-beside test-go

# The tests wait half of their time, for engines and browsers and boards: what only wants a
# processor runs beside them, as long as they leave it one. What it says comes in one piece.
test-beside:
	@log=$$(mktemp); trap 'rm -f $$log' EXIT; \
	for t in test-static test-plain test-long test-quick; do \
		nice -n 10 $(MAKE) --no-print-directory MAKEFLAGS= $$t >$$log 2>&1; code=$$?; cat $$log; \
		[ $$code = 0 ] || { echo "make $$t failed: see above"; exit $$code; }; \
	done

# Compiled as releases and test-long are: what they have in the cache is compiled once.
test-static: export CGO_ENABLED = 0
test-static:
	@out=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); if [ -n "$$out" ]; then echo "not gofmt'd:"; echo "$$out"; exit 1; fi
	go vet -trimpath ./...
	GOFLAGS="$$(go env GOFLAGS) -trimpath" go run $(STATICCHECK) ./...
	@# SQLite in Go works with exactly the libc that it was made with: any other corrupts memory on 32-bit ARM.
	@want=$$(sed -n 's/.*modernc.org\/libc \(v[^ ]*\).*/\1/p' "$$(go list -m -f '{{.GoMod}}' modernc.org/sqlite)"); \
	have=$$(go list -m -f '{{.Version}}' modernc.org/libc); \
	[ "$$want" = "$$have" ] || { echo "go.mod: modernc.org/libc is $$have, but modernc.org/sqlite was made with $$want: pin that"; exit 1; }

# Both programs for every platform, into bin/<platform>/. make test has them built by hub/e2e
# (TestPlatforms), which looks at their size and asks each who it is.
test-cross:
	@for p in $(PLATFORMS); do \
		IFS=/ read -r os arch arm <<< "$$p"; \
		for name in hub device; do \
			CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch GOARM=$${arm#v} go build $(GOFLAGS_BUILD) -o bin/$$p/flotilla-$$name ./$$name || exit 1; \
			echo "built flotilla-$$name for $$p: $$(( $$(stat -c %s bin/$$p/flotilla-$$name) / 1024 )) KiB"; \
		done; \
	done

# SQLite is C that was made into Go, with memory and locks of its own, and argon2id is arithmetic on
# memory that nobody else has: the race detector finds nothing in them, and costs a third of the time
# of the tests that have a store, and half of that of the tests that log somebody in.
UNRACED = -race=false -d=checkptr=0 -dwarf=false
RACE = -race -gcflags='modernc.org/...=$(UNRACED)' -gcflags='golang.org/x/crypto/...=$(UNRACED)'

# Packages without a goroutine, a lock or a context have nothing to race: what is raced there is raced
# by those who call it. They are tested without the detector, five times as fast.
CONCURRENT = '^\s*go [a-z]|"(context|sync|sync/atomic|net/http|testing/synctest|golang.org/x/sync/errgroup)"'
RACED = $(shell grep -rlE --include='*.go' $(CONCURRENT) device hub shared web | grep -v /testdata/ | xargs -n1 dirname | sort -u)

test-plain:
	CGO_ENABLED=0 go test -trimpath -vet=off -timeout 60m $$(go list ./... | grep -vxF "$$(printf 'flotilla.dev/%s\n' $(RACED))")

# The longest first, two that wait beside one that works; more at once is too much for Podman, and
# for what a test awaits. By itself the detector also waits a second at the end of every program,
# for reports of threads that still run. test-static has vetted them.
FIRST = device/agent hub/e2e hub/sim hub/admin
test-go: export GORACE = atexit_sleep_ms=0
test-go:
	go test $(RACE) -timeout 80m -vet=off -p 3 -parallel 2 $(addprefix ./,$(FIRST) $(filter-out $(FIRST),$(RACED)))

# What plays a part only with the race detector, or none (see Raced in hub/e2e/nodetest, raced in
# hub/sim): a whole day of two hundred devices, the bytes of an idle one, a thousand that ride out a
# hub's outage, every message lost, doubled or late, five minutes of a device that fills the hub, the
# power cut or the disk full at every call of a boot configuration, two hundred stories held against
# the model. Their packages are those of the programs that hub/e2e builds.
test-long:
	CGO_ENABLED=0 go test -trimpath -count=1 -timeout 60m -run '^TestFleet(ADay|TheLogOf|AnIdle|ADiskThat|ADeviceWhose|Chance|AnOutageOf|AnySingleMessage|AQuestionIs|ACommandIs)|Budget|WhereverThe|TheHubDoes|^TestStories|^FuzzFirmware' ./hub/sim ./hub/node ./hub/control ./device/firmware

# The quick specs of Kubernetes' conformance suite, where make conformance has built it.
test-quick:
	$(GORUN) ./hub/e2e/conformance -quick

# Benchmarks; the fleet size is part of their names. Compare runs with benchstat.
bench:
	CGO_ENABLED=0 go test -trimpath -run '^$$' -bench . -benchmem ./...

# What fleets of real connections cost the hub, plain and over TLS: memory and processor time a
# node; how one returns whose hub was killed. Twenty minutes. BENCH='-write web/manual/scale.md'
# writes the tables into the manual.
FLEET ?= 100,1000,5000,10000,18000
RETURN ?= 10000
bench-fleet:
	$(GORUN) ./hub/e2e/load -fleet $(FLEET) -both -paced 20s $(BENCH)
	$(GORUN) ./hub/e2e/load -return $(RETURN) $(BENCH)

# What a lease costs the hub, and what it costs Mosquitto with a consumer behind it, in one run;
# what either takes at most; what a million devices behind a broker cost a leader. Five minutes.
# BENCH='-write hub/e2e/load/README.md' writes the tables there.
BROKERS ?= 10000
bench-broker:
	$(GORUN) ./hub/e2e/load -brokers $(BROKERS) $(BENCH)

# A hub with 500 simulated devices, on which pods, nodes, pages and watches come and go: it fails
# where goroutines, files, memory or the database grow with time. SOAK=5m to try; three minutes more
# to warm up. DATABASE=postgres://… for a hub with an empty database there.
SOAK ?= 1h
soak:
	$(GORUN) ./hub/e2e/load -soak $(SOAK) $(if $(DATABASE),-database '$(DATABASE)')

# Attacks of strangers, devices and people on a fresh hub each: a table of what held. Fifteen minutes.
attack:
	$(GORUN) ./hub/e2e/attack

# What happens in the field, to real hubs, agents and engines: kills, power cuts, broken lines,
# full disks, torn files. A table of what held. Twenty minutes; FAULTS='-run ^F2$$' for a row.
faults:
	@.ci/services .ci/services.env
	@set -a && . ./.ci/services.env && set +a && $(GORUN) ./hub/e2e/faults $(FAULTS)

# Kubernetes' own conformance suite: every spec that we claim, on simulated devices and on
# agents with Docker (CONFORMANCE='-engine podman': with Podman; go run ./hub/e2e/conformance -help).
# The first time it builds the suite, ten to twenty minutes on two cores, into the user's cache.
conformance:
	@.ci/services .ci/services.env
	@set -a && . ./.ci/services.env && set +a && $(GORUN) ./hub/e2e/conformance $(CONFORMANCE)

# Every fuzz target for 30 s each; FUZZTIME=10h FUZZ=TheHubDoes tells random stories all night.
FUZZTIME ?= 30s
FUZZ ?= .
fuzz:
	@go list ./... | while read -r pkg; do \
		for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' | grep -- '$(FUZZ)'); do \
			echo "$$pkg $$target"; go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done

clean:
	rm -rf bin dist

SHELL = /bin/bash
