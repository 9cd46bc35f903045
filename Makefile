# Building, setting up and checking Godwit. `make help` lists what there is.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Where setup puts a Go toolchain if the machine has none that is new enough.
export PATH := /opt/godwit/go/bin:$(PATH)

# A tag such as v0.1.0 gives 0.1.0, a commit after it 0.1.0-3-gabcdef; without tags it is 0.1.0-dev-abcdef.
VERSION ?= $(shell git describe --tags --match 'v*' --dirty 2>/dev/null | sed 's/^v//')
ifeq ($(VERSION),)
VERSION := 0.1.0-dev$(shell git describe --always --dirty 2>/dev/null | sed 's/^/-/')
endif

FUZZTIME ?= 10s
ARCHITECTURES := amd64 arm64

# make install
DESTDIR ?=
PREFIX ?= /usr/local
UNITDIR ?= /etc/systemd/system

# Static, so that the binary runs on any distribution, and inside the container of doctor's trial.
GO_BUILD = CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)'

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9.-]*:.*## / { printf "  %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install what is needed: packages, Go, a CRIU and a runc that work here (root; quick when all is there)
	scripts/setup-packages.sh
	scripts/setup-go.sh
	$(MAKE) --no-print-directory build
	scripts/setup-criu.sh

.PHONY: build
build: ## build/godwit, build/godwit-controller and build/godwit-lab, static, for this machine
	@mkdir -p build
	$(GO_BUILD) -o build/godwit ./cmd/godwit
	$(GO_BUILD) -o build/godwit-controller ./cmd/godwit-controller
	$(GO_BUILD) -o build/godwit-lab ./cmd/godwit-lab

.PHONY: build-all
build-all: ## build/godwit-linux-amd64 and build/godwit-linux-arm64
	@mkdir -p build
	for architecture in $(ARCHITECTURES); do \
	  GOOS=linux GOARCH=$$architecture $(GO_BUILD) -o build/godwit-linux-$$architecture ./cmd/godwit; \
	done

.PHONY: test
test: setup ## all tests, for real: needs root, CRIU and the kernel; fails rather than skips
	scripts/test.sh

.PHONY: test-long
test-long: setup ## the same, with all faults at all steps and more of what is random (half an hour and more)
	scripts/test.sh --long

.PHONY: test-kernels
test-kernels: ## memory tracking on Debian's kernels in QEMU, without acceleration (long; not part of test)
	scripts/test-kernels.sh

.PHONY: test-wireguard
test-wireguard: ## the overlay with the WireGuard of Debian's kernels in QEMU, without acceleration (long; not part of test)
	scripts/test-wireguard.sh $(SUITES)

.PHONY: soak
soak: setup ## MIGRATIONS (default 200) migrations in a row, in all modes that are live, of programs that check all of their memory
	GODWIT_E2E_MIGRATIONS=$(or $(MIGRATIONS),200) go test -count=1 -timeout 4h -run '^TestMemory$$' -v ./test/e2e

# A storm of one seed, which it prints, is repeated with SEED=N; NODES is how many the lab has, from 2 to 5. A storm that was
# stopped goes on with RESUME=1.
storm-of = STORM_SEED=$(SEED) STORM_NODES=$(NODES) STORM_RESUME=$(RESUME) STORM_JSON='$(CURDIR)/build/storm.json' \
  STORM_LOGS='$(CURDIR)/build/storm-logs' $(1) \
  go test -count=1 -timeout 48h -run '^TestStorm$$' -v ./test/storm

.PHONY: storm
storm: setup ## MIGRATIONS (default 10000) random migrations among 3 nodes with faults of all kinds, watched from outside (hours; RESUME=1 to go on); leaves build/storm.json
	@mkdir -p build
	$(call storm-of,STORM_MIGRATIONS=$(or $(MIGRATIONS),10000))

.PHONY: storm-quick
storm-quick: setup ## the same for 10 minutes
	@mkdir -p build
	$(call storm-of,STORM_SECONDS=600)

DRAINS ?= 20

.PHONY: soak-drain
soak-drain: setup ## DRAINS (default 20) link cuts and DRAINS kills of both agents while memory follows; memory that follows over the worst links
	GODWIT_FAULTS_DRAINS=$(DRAINS) go test -count=1 -timeout 2h -run '^TestPushBreaks$$' -v ./test/faults
	GODWIT_E2E_MIGRATIONS=$(DRAINS) go test -count=1 -timeout 1h -run '^TestPushLinks$$' -v ./test/e2e

SEEDS ?= 100

.PHONY: soak-files
soak-files: ## SEEDS (default 100) directories copied in rounds while processes do all sorts of things in them, and compared
	GODWIT_FILES_SEEDS=$(SEEDS) go test -count=1 -timeout 2h -run '^(TestTorture|TestAsManyNamesAsThereMayBe)$$' -v ./internal/files/copies

.PHONY: test-studies
test-studies: setup ## the studies' workloads (OpenCV, Java, NGINX, RabbitMQ) moved in all modes; makes images of 4 GB
	GODWIT_STUDIES=all go test -count=1 -timeout 1h -run '^TestStudies$$' -v ./internal/bench/studies

.PHONY: test-services
test-services: setup ## move 30 services (databases, brokers, servers, runtimes) there and back in all modes while clients use them; select with SERVICES=pattern, MODES, LINKS="1gbit 100mbit", SERVICES_ENGINES="embedded docker", SERVICES_HOSTS="trixie trixie" for two stock Debian machines in QEMU instead of a lab; leaves build/services.json
	@mkdir -p build
	SERVICES_HOSTS='$(SERVICES_HOSTS)' SERVICES='$(SERVICES)' MODES='$(MODES)' LINKS='$(LINKS)' SERVICES_ENGINES='$(SERVICES_ENGINES)' \
	  SERVICES_JSON='$(CURDIR)/build/services.json' SERVICES_TABLE='$(CURDIR)/build/services.md' \
	  go test -C test/services -count=1 -timeout 12h -run '^TestServices$$' -v .

.PHONY: test-engines
test-engines: setup ## the engines' tests with other versions than the system's, which are fetched, and with different ones at the two ends; RUNS="docker-28 mixed" for some (scripts/test-engines.sh --list)
	scripts/test-engines.sh $(RUNS)

HOSTS ?= trixie trixie
hosts-of = HOSTS_SUITES='$(HOSTS)' HOSTS_LONG=$(1) HOSTS_JSON='$(CURDIR)/build/hosts.json' \
  go test -tags hosts -count=1 -timeout 12h -v ./test/hosts

.PHONY: test-hosts
test-hosts: setup ## move containers of all engines in all modes between two stock Debian machines in QEMU, restart agents and reboot a machine; HOSTS="trixie bookworm" selects the suites; leaves build/hosts.json
	@mkdir -p build
	$(call hosts-of,1)

.PHONY: test-hosts-quick
test-hosts-quick: setup ## the same in two modes, without reboots
	@mkdir -p build
	$(call hosts-of)

MOVES ?= 100

.PHONY: test-upgrade
test-upgrade: setup ## MOVES (default 100) moves during a rolling upgrade from the previous release, and its rollback; leaves build/upgrade.json
	@mkdir -p build
	UPGRADE_MOVES=$(MOVES) UPGRADE_JSON=$(CURDIR)/build/upgrade.json go test -count=1 -timeout 2h -v ./test/upgrade

ZDTM_SUITE := $(HOME)/.cache/godwit/zdtm

.PHONY: zdtm
zdtm: setup ## CRIU's own test suite, which is fetched and built: each program moves in all modes, beside plain runc (half an hour; ZDTM='^static/pipe' for some programs, WAYS="runc pre-copy" for some ways, RESUME=1 to go on); leaves build/zdtm.json and the table for docs/compatibility.md
	@mkdir -p build
	test -e '$(ZDTM_SUITE)/VERSION' || scripts/fetch-zdtm.sh '$(ZDTM_SUITE)'
	ZDTM_SUITE='$(ZDTM_SUITE)' ZDTM='$(ZDTM)' ZDTM_WAYS='$(WAYS)' ZDTM_RESUME='$(RESUME)' ZDTM_JSON='$(CURDIR)/build/zdtm.json' \
	  go test -count=1 -timeout 12h -parallel 4 -run '^TestZdtm$$' -v ./test/zdtm

.PHONY: compatibility
.IGNORE: compatibility # what fails is in the tables
compatibility: export GODWIT_COMPATIBILITY := $(CURDIR)/build/compatibility
compatibility: setup ## the conformance suite with containers of all engines and versions, in all modes; writes what it finds into docs/compatibility.md
	rm -rf build/compatibility
	mkdir -p build/compatibility
	go test -count=1 -timeout 40m -run '^TestConformance' ./test/engines
	scripts/test-engines.sh compatibility
	go run ./test/engines/compatibility build/compatibility docs/compatibility.md

.PHONY: messages
messages: ## all texts for people that the programs have, to be read; leaves build/messages.txt
	go test -count=1 -run '^TestMessages$$' -v ./internal/house

.PHONY: lint
lint: ## gofmt, golangci-lint with the import rules of the design, shellcheck
	scripts/lint.sh

.PHONY: recording
recording: setup ## the session that the README shows, recorded from a real run in a lab; leaves docs/recording.cast and docs/recording.svg
	scripts/recording.sh

.PHONY: demo
demo: setup ## two nodes, a link, a Redis that moves while a client counts; leaves build/demo.json
	build/godwit-lab demo --json build/demo.json

.PHONY: bench
bench: bench-rounds bench-switchover bench-postcopy bench-files bench-predict bench-journey ## all benchmarks but bench-studies and bench-engines

.PHONY: bench-rounds
bench-rounds: setup ## what the parts of a pre-copy cost; leaves build/bench-rounds.json
	build/godwit-lab bench rounds --json build/bench-rounds.json

.PHONY: bench-switchover
bench-switchover: setup ## how long a switchover takes, beside other ways to move a container; leaves build/bench-switchover.json
	build/godwit-lab bench switchover --json build/bench-switchover.json

# What is asked of the pre-copy, without what takes long for other modes.
PRE_COPY_WORKLOADS := tiny idle busy shared forked fog recogniser

.PHONY: bench-pre-copy
bench-pre-copy: setup ## bench-rounds, and of bench-switchover what is about the pre-copy; leaves build/bench-pre-copy.json
	build/godwit-lab bench rounds --json build/bench-rounds.json
	build/godwit-lab bench switchover $(PRE_COPY_WORKLOADS:%=--workload %) --json build/bench-pre-copy.json

.PHONY: bench-postcopy
bench-postcopy: setup ## what memory costs that follows its container, beside CRIU's lazy migration; leaves build/bench-postcopy.json
	build/godwit-lab bench postcopy --json build/bench-postcopy.json

.PHONY: bench-files
bench-files: setup ## how files, volumes and images move, beside rsync and Podman; leaves build/bench-files.json
	build/godwit-lab bench files --json build/bench-files.json

.PHONY: bench-predict
bench-predict: setup ## predictions beside what migrations take, and mode auto beside the best mode; leaves build/bench-predict.json
	build/godwit-lab bench predict --json build/bench-predict.json

.PHONY: bench-idle
bench-idle: setup ## what an idle agent costs with 100 containers and 49 other nodes (BEFORE=PROGRAM for another godwit beside it); leaves build/bench-idle.json
	build/godwit-lab bench idle $(if $(BEFORE),--agent $(BEFORE)) --json build/bench-idle.json

.PHONY: bench-controller
bench-controller: build ## decisions of the controller, and what it costs with 10,000 agents; leaves build/bench-controller.json
	build/godwit-lab bench controller --json build/bench-controller.json

.PHONY: bench-engines
bench-engines: setup ## containers of Docker, Podman, containerd and LXC, beside these engines' own ways; leaves build/bench-engines.json
	build/godwit-lab bench engines --json build/bench-engines.json

.PHONY: bench-engines-quick
bench-engines-quick: setup ## the same, there and back once; leaves build/bench-engines-quick.json
	build/godwit-lab bench engines --quick --json build/bench-engines-quick.json

.PHONY: interference
interference: setup ## stop, kill, rm, restart, pause, update and the end of daemons and shims, at each step of a move, in doubt and in a post-copy push, link up and down, with all engines: 411 cases (INTERFERENCE=docker-stop for some)
	go test -count=1 -timeout 4h -run '^(TestInterference|TestOrdered)$$/$(INTERFERENCE)' -v ./test/engines

TRIPS ?= 20

.PHONY: soak-engines
soak-engines: setup ## one container of each engine TRIPS (default 20) times there and back, with a client where connections are kept; nothing is left in engine, kernel or on disk
	GODWIT_ENGINES_TRIPS=$(TRIPS) go test -count=1 -timeout 1h -run '^TestThereAndBack$$' -v ./test/engines

.PHONY: bench-journey
bench-journey: setup ## a user who moves over four nodes: path known, unknown, nothing staged; leaves build/bench-journey.json
	build/godwit-lab bench journey --json build/bench-journey.json

.PHONY: bench-journey-quick
bench-journey-quick: setup ## the same with one journey of each kind; leaves build/bench-journey-quick.json
	build/godwit-lab bench journey --quick --json build/bench-journey-quick.json

.PHONY: bench-files-quick
bench-files-quick: setup ## the same with much less of everything; leaves build/bench-files-quick.json
	build/godwit-lab bench files --quick --json build/bench-files-quick.json

STUDIES ?= a b c d

.PHONY: bench-studies
bench-studies: setup ## the experiments of four studies, beside their figures (15 hours; STUDIES="a b" for some, RESUME=1 to go on); leaves build/bench-studies.json and .html
	build/godwit-lab bench studies $(STUDIES:%=--study %) $(if $(RESUME),--resume) --json build/bench-studies.json --html build/bench-studies.html

.PHONY: bench-studies-quick
bench-studies-quick: setup ## the same with much less of everything
	build/godwit-lab bench studies --quick --json build/bench-studies-quick.json --html build/bench-studies-quick.html

.PHONY: fuzz
fuzz: ## every fuzz test for FUZZTIME each (default 10s)
	scripts/fuzz.sh $(FUZZTIME)

.PHONY: fuzz-short
fuzz-short: ## every fuzz test for 300 inputs each; most of the time it builds
	scripts/fuzz.sh 300x

.PHONY: fuzz-ci
fuzz-ci: ## fuzz tests for 300 inputs each until a minute is over; each commit begins with others
	scripts/fuzz.sh 300x 60

PROTOC_GEN_GO ?= v1.36.12
PROTOC_GEN_GO_GRPC ?= v1.6.2

.PHONY: generate
generate: ## internal/api from its .proto files (needs protoc: package protobuf-compiler)
	@mkdir -p build/tools
	GOBIN=$(CURDIR)/build/tools go install google.golang.org/protobuf/cmd/protoc-gen-go@$(PROTOC_GEN_GO)
	GOBIN=$(CURDIR)/build/tools go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@$(PROTOC_GEN_GO_GRPC)
	PATH='$(CURDIR)/build/tools':$$PATH protoc -I internal/api --go_out=internal/api --go_opt=paths=source_relative \
	  --go-grpc_out=internal/api --go-grpc_opt=paths=source_relative \
	  internal/api/godwit.proto internal/api/controller.proto

.PHONY: install
install: build ## godwit and godwit-controller (not godwit-lab), their manual pages, the guide and systemd units into DESTDIR/PREFIX (default /usr/local)
	install -D -m 0755 build/godwit '$(DESTDIR)$(PREFIX)/bin/godwit'
	install -D -m 0755 build/godwit-controller '$(DESTDIR)$(PREFIX)/bin/godwit-controller'
	build/godwit man '$(DESTDIR)$(PREFIX)/share/man/man1'
	build/godwit-controller man '$(DESTDIR)$(PREFIX)/share/man/man1'
	install -D -m 0644 -t '$(DESTDIR)$(PREFIX)/share/doc/godwit' README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md LICENSE
	install -D -m 0644 -t '$(DESTDIR)$(PREFIX)/share/doc/godwit/docs' docs/*.md docs/recording.svg
	install -D -m 0644 -t '$(DESTDIR)$(PREFIX)/share/doc/godwit/docs/internals' docs/internals/*.md
	install -d -m 0755 '$(DESTDIR)$(UNITDIR)'
	install -m 0644 -t '$(DESTDIR)$(UNITDIR)' packaging/godwit.slice packaging/godwit-containers.service
	sed 's|@BINDIR@|$(PREFIX)/bin|' packaging/godwit-agent.service >'$(DESTDIR)$(UNITDIR)/godwit-agent.service'
	sed 's|@BINDIR@|$(PREFIX)/bin|' packaging/godwit-controller.service \
	  >'$(DESTDIR)$(UNITDIR)/godwit-controller.service'

.PHONY: uninstall
uninstall: ## remove what install put there; containers and state stay
	rm -f '$(DESTDIR)$(PREFIX)/bin/godwit' '$(DESTDIR)$(PREFIX)/bin/godwit-controller' '$(DESTDIR)$(PREFIX)'/share/man/man1/godwit*.1
	rm -f '$(DESTDIR)$(UNITDIR)/godwit-controller.service' '$(DESTDIR)$(UNITDIR)/godwit-agent.service' '$(DESTDIR)$(UNITDIR)/godwit-containers.service' '$(DESTDIR)$(UNITDIR)/godwit.slice'
	rm -rf '$(DESTDIR)$(PREFIX)/share/doc/godwit'

.PHONY: clean
clean: ## remove build/
	rm -rf build
