# What people type: make run, make test. The rest is for those who work on Flotilla.

VERSION ?= 0.1.0
GOFLAGS_BUILD = -trimpath -ldflags "-s -w -X main.version=$(VERSION)"
PLATFORMS = linux/amd64 linux/arm64 linux/arm/v7 linux/arm/v6
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: build run check test test-static test-cross test-go test-day bench fuzz clean

build:
	CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o bin/flotilla-hub ./hub
	CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o bin/flotilla-device ./device

# A hub, this machine as a node, eight simulated devices, a sample workload: all in ./data.
run: build
	go run ./hub/quickstart

# The quick loop: no race detector, no real software.
check:
	go vet ./...
	go test -short ./...

# Everything. As root on Debian it installs and starts what the tests need.
test: test-static test-cross
	@.ci/services .ci/services.env
	@set -a && . ./.ci/services.env && set +a && $(MAKE) --no-print-directory test-go

test-static:
	@out=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); if [ -n "$$out" ]; then echo "not gofmt'd:"; echo "$$out"; exit 1; fi
	go vet ./...
	go run $(STATICCHECK) ./...
	@# SQLite in Go works with exactly the libc that it was made with: any other corrupts memory on 32-bit ARM.
	@want=$$(sed -n 's/.*modernc.org\/libc \(v[^ ]*\).*/\1/p' "$$(go list -m -f '{{.GoMod}}' modernc.org/sqlite)"); \
	have=$$(go list -m -f '{{.Version}}' modernc.org/libc); \
	[ "$$want" = "$$have" ] || { echo "go.mod: modernc.org/libc is $$have, but modernc.org/sqlite was made with $$want: pin that"; exit 1; }

# Both programs for every platform, into bin/<platform>/.
test-cross:
	@for p in $(PLATFORMS); do \
		IFS=/ read -r os arch arm <<< "$$p"; \
		for name in hub device; do \
			CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch GOARM=$${arm#v} go build $(GOFLAGS_BUILD) -o bin/$$p/flotilla-$$name ./$$name || exit 1; \
			echo "built flotilla-$$name for $$p: $$(( $$(stat -c %s bin/$$p/flotilla-$$name) / 1024 )) KiB"; \
		done; \
	done

test-go: test-day
	go test -race -timeout 15m ./...

# A whole day of two hundred devices, in the packages that test-cross has built: with
# the race detector, where it would take minutes, it has three hours.
test-day:
	CGO_ENABLED=0 go test -trimpath -count=1 -run '^TestFleetADay$$' ./hub

# Benchmarks; the fleet size is part of their names. Compare runs with benchstat.
bench:
	go test -run '^$$' -bench . -benchmem ./...

# Every fuzz target for 30 s each.
fuzz:
	@go list ./... | while read -r pkg; do \
		for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "$$pkg $$target"; go test -run '^$$' -fuzz "^$$target$$" -fuzztime 30s $$pkg || exit 1; \
		done; \
	done

clean:
	rm -rf bin dist

SHELL = /bin/bash
