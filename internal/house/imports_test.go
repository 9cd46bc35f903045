package house

import (
	"slices"
	"strings"
	"testing"
)

// mayImport has a row for each package: the packages of this module, without "internal/", that its code
// imports, without its tests. A new arrow is a decision: add it here, and say why in the commit. Arrows
// point down.
var mayImport = map[string]string{
	// cmd/godwit: the product; knows neither lab nor bench.
	"cmd/godwit": "admission agent api audit cli criu doctor engine engine/checkpoint engine/containerd " +
		"engine/docker engine/embedded engine/engines engine/oci engine/podman engine/shim kernel " +
		"kernel/inject memory/pager migration network network/foreign network/tunnel network/wireguard " +
		"predict scripts units uplink wire/identity wire/pinned",
	// cmd/godwit-controller: no agent, no engine.
	"cmd/godwit-controller": "api cli controller controller/executor controller/store " +
		"controller/store/etcdstore units uplink",
	"cmd/godwit-lab": "bench bench/controller bench/idle bench/network bench/page bench/results " +
		"bench/rounds bench/studies bench/switchover bench/testbed cli lab lab/image lab/workload " +
		"lab/workload/pages migration network/wireguard units",
	// agent: the top: whoever needs an agent starts one and speaks its API.
	"internal/agent": "access admission api attachment audit cluster cluster/measure control criu " +
		"criu/relief departure durable engine engine/embedded engine/engines envelopes " +
		"files files/copies files/image forecast frozen gc guard inventory kernel latestart lease " +
		"location memory memory/postcopy migrate migration network network/wireguard " +
		"node/containers node/data node/disk node/rpc node/supervisor patience placement " +
		"placement/controller policy predict reserve residual restart sampling staging " +
		"statedir switchover transfer/anew transfer/dump transfer/files transfer/kept transfer/layers " +
		"transfer/link transfer/memory/arriving transfer/memory/leaving transfer/memory/precopy " +
		"transfer/memory/push transfer/memory/rounds transfer/progress transfer/proof transfer/state " +
		"transfer/volumes uplink wire wire/identity wire/stream",
	"internal/access": "api audit kernel wire",
	// admission: refuses, and moves nothing; the agent tells what is known of the node.
	"internal/admission": "api criu engine envelopes files kernel kernel/cgroup migration network policy " +
		"transfer/layers",
	// latestart: what else has to be done with a container that arrives is the agent's.
	"internal/latestart": "api engine",
	// lease: does not find out whether a container is gone.
	"internal/lease": "api durable engine guard kernel network wire/identity",
	// location: asks migrations where they have containers, and starts none.
	"internal/location": "api cluster engine guard network patience wire/identity",
	// placement: decides from numbers that the agent measures.
	"internal/placement": "",
	// placement/controller: carries decisions out; staging makes the copies, and the agent names the nodes.
	"internal/placement/controller": "api engine guard kernel migration placement predict staging " +
		"wire/identity",
	"internal/api":   "",
	"internal/audit": "",
	// bench: starts programs and reads their output: neither agent nor engines.
	"internal/bench": "bench/engines bench/files bench/idle bench/journey bench/network bench/postcopy " +
		"bench/predict bench/results bench/rounds bench/studies bench/switchover bench/testbed",
	// bench/controller: calls the controller's decisions, and otherwise its program.
	"internal/bench/controller": "api controller controller/store guard uplink wire/identity wire/pinned",
	"internal/bench/page":       "bench/results",
	"internal/bench/results":    "",
	"internal/bench/testbed":    "bench/results criu lab lab/image lab/workload/pages units",
	"internal/bench/benchtest":  "bench/results bench/testbed lab lab/labtest",
	"internal/bench/moves": "bench/results bench/testbed criu engine lab lab/image lab/workload " +
		"lab/workload/pages memory migration",
	"internal/bench/services": "bench/moves bench/testbed lab lab/image lab/workload lab/workload/broker " +
		"lab/workload/coap lab/workload/face lab/workload/player",
	"internal/bench/rounds": "bench/moves bench/results bench/testbed criu kernel kernel/inject " +
		"lab/workload/pages memory memory/pipeline",
	"internal/bench/network": "bench/results bench/testbed criu network",
	"internal/bench/idle":    "api bench/moves bench/results bench/testbed lab lab/image wire wire/identity",
	"internal/bench/engines": "bench/moves bench/results bench/testbed lab/workload migration",
	"internal/bench/journey": "bench/moves bench/results bench/testbed lab lab/workload/pages migration",
	"internal/bench/predict": "bench/moves bench/results bench/services bench/testbed lab/workload/pages " +
		"migration predict",
	"internal/bench/files": "bench/moves bench/results bench/testbed lab/image lab/workload/tree migration",
	"internal/bench/postcopy": "bench/moves bench/results bench/testbed lab lab/workload/pages memory " +
		"migration",
	"internal/bench/studies": "bench/moves bench/results bench/services bench/testbed engine lab/image " +
		"lab/workload/player migration",
	"internal/bench/switchover": "bench/moves bench/results bench/testbed engine lab/workload/pages " +
		"migration",
	"internal/cli": "units",
	// cluster: knows nodes and links, no containers; the agent supplies the contents of greetings.
	"internal/cluster": "api compat guard migration network network/wireguard patience " +
		"predict wire wire/identity wire/stream",
	"internal/cluster/clustertest": "wire wire/identity",
	"internal/compat":              "",
	// await: for tests only.
	"internal/await": "",
	// attachment: makes networks what engines have made of containers; knows no other node.
	"internal/attachment": "durable engine engine/checkpoint guard inventory kernel network patience",
	// cluster/measure: measures links; what is known of them is in cluster.
	"internal/cluster/measure": "guard predict wire wire/identity wire/stream",
	// control: knows no step and no container; the machines repeat what matters.
	"internal/control": "api envelopes guard migration patience wire/identity",
	// controller: asks agents; neither the agent nor etcd is linked into it.
	"internal/controller": "api audit controller/decide controller/executor controller/intake " +
		"controller/store guard migration wire/identity wire/pinned",
	"internal/controller/decide":          "",
	"internal/controller/executor":        "",
	"internal/controller/intake":          "",
	"internal/controller/store":           "",
	"internal/controller/store/etcdstore": "controller/store guard",
	"internal/controller/store/storetest": "controller/store",
	"internal/criu":                       "criu/descriptors criu/examine criu/vet kernel kernel/cgroup kernel/inject",
	"internal/criu/descriptors":           "kernel",
	// criu/examine: looks at running processes; knows no dump.
	"internal/criu/examine": "criu/descriptors kernel kernel/cgroup kernel/inject",
	// criu/relief: decides when sockets are looked at; criu does what is to be done with them.
	"internal/criu/relief": "criu",
	"internal/criu/vet":    "",
	// departure: finds out what can leave, and moves nothing.
	"internal/departure": "admission api control engine envelopes forecast migrate migration predict " +
		"transfer/anew transfer/volumes wire/identity",
	// doctor: judges a whole node for a person; code asks kernel or criu about a single feature.
	"internal/doctor":  "kernel patience",
	"internal/durable": "kernel",
	// engine: the contract: nothing of any engine shows through it.
	"internal/engine": "files guard memory",
	"internal/engine/checkpoint": "criu criu/examine criu/vet durable engine kernel kernel/cgroup " +
		"kernel/inject memory memory/pager network network/dump network/nsstate",
	// engine/containerd: an engine knows no other engine, no migration and no other node. A need of two
	// engines is a mechanism.
	"internal/engine/containerd": "durable engine engine/containerd/nerdctl engine/contentstore " +
		"engine/mounts engine/oci engine/shim files/image kernel network network/dump patience",
	"internal/engine/containerd/nerdctl": "engine files kernel patience",
	"internal/engine/contentstore":       "engine engine/oci files files/image patience",
	"internal/engine/docker": "durable engine engine/checkpoint engine/contentstore engine/mounts " +
		"engine/oci files files/image files/tarsplit kernel patience",
	"internal/engine/embedded": "criu criu/examine durable engine engine/checkpoint " +
		"engine/embedded/account engine/embedded/output engine/mounts files kernel kernel/cgroup memory memory/pager " +
		"patience",
	// engine/embedded/account: knows no container; likewise engine/embedded/output.
	"internal/engine/embedded/account": "files/regular",
	"internal/engine/embedded/output":  "engine",
	// engine/engines: the only list of engines.
	"internal/engine/engines": "engine engine/containerd engine/docker engine/embedded engine/lxc " +
		"engine/podman",
	"internal/engine/enginetest": "engine files files/copies",
	"internal/engine/lxc": "criu criu/examine criu/vet durable engine engine/checkpoint engine/mounts files " +
		"kernel kernel/cgroup memory memory/pager network/nsstate patience",
	"internal/engine/mounts": "",
	// engine/oci: knows no engine.
	"internal/engine/oci": "criu criu/examine durable engine engine/checkpoint engine/mounts engine/shim " +
		"files kernel kernel/cgroup memory memory/pager patience",
	"internal/engine/podman": "durable engine engine/mounts engine/oci engine/shim files files/image " +
		"files/tarsplit kernel patience",
	"internal/engine/shim": "criu durable engine/checkpoint engine/mounts files kernel network",
	// envelopes: checks another node's messages; the agent decides whether a container may come.
	"internal/envelopes": "api compat engine migration transfer/layers",
	// files: a mechanism: serves every engine and knows none; likewise criu, memory, network.
	"internal/files":         "files/fsys",
	"internal/files/chunk":   "",
	"internal/files/compare": "files files/fsys files/manifest files/ordered",
	"internal/files/copies": "files files/chunk files/compare files/fsys files/manifest files/ordered " +
		"files/records guard",
	"internal/files/fetch":     "files/image files/parts guard",
	"internal/files/filestest": "",
	"internal/files/fsys":      "",
	"internal/files/image":     "files files/parts guard kernel",
	"internal/files/inodes":    "guard kernel",
	"internal/files/manifest":  "files/chunk files/fsys",
	"internal/files/ordered":   "guard",
	"internal/files/parts":     "files/chunk",
	"internal/files/records":   "files files/fsys",
	"internal/files/regular":   "",
	"internal/files/shared":    "guard kernel",
	"internal/files/tarsplit":  "files/regular guard",
	// forecast: measures what a prediction lacks; predict decides, and the agent moves.
	"internal/forecast": "api engine files migration predict transfer/memory/rounds wire/identity",
	// frozen: keeps the copy; what a migration does with the copy is decided elsewhere.
	"internal/frozen": "api engine guard kernel kernel/inject memory migration",
	"internal/gc":     "",
	"internal/guard":  "",
	"internal/house":  "",
	// inventory: asks engines, and knows no other node.
	"internal/inventory": "engine guard kernel",
	// journal: writes what the machine says; decides nothing.
	"internal/journal": "durable engine kernel migration",
	// journal/rebuild: makes journals from engines' notes, and goes on with no migration itself.
	"internal/journal/rebuild": "engine engine/checkpoint guard journal migration",
	// kernel: at the bottom: everything may use it.
	"internal/kernel":            "",
	"internal/kernel/kerneltest": "",
	"internal/kernel/cgroup":     "kernel kernel/inject",
	"internal/kernel/inject":     "kernel",
	// lab: bench measures in the lab, not the other way round.
	"internal/lab":                  "kernel lab/workload/pages lab/workload/torture lab/workload/tree units",
	"internal/lab/hosts":            "lab",
	"internal/lab/image":            "",
	"internal/lab/labtest":          "lab",
	"internal/lab/workload":         "",
	"internal/lab/workload/broker":  "lab/workload",
	"internal/lab/workload/coap":    "lab/workload",
	"internal/lab/workload/face":    "lab/workload",
	"internal/lab/workload/pages":   "kernel lab/workload",
	"internal/lab/workload/player":  "lab/workload",
	"internal/lab/workload/torture": "lab/workload",
	"internal/lab/workload/tree":    "lab/workload",
	"internal/memory":               "guard kernel kernel/cgroup kernel/inject memory/pageset",
	"internal/memory/pageset":       "kernel",
	"internal/memory/postcopy":      "guard kernel memory memory/pipeline wire/stream",
	"internal/memory/pager":         "criu kernel kernel/cgroup memory",
	"internal/memory/pipeline":      "guard memory",
	// migrate: runs machines and keeps journals; the work of steps is behind an interface.
	"internal/migrate": "api durable engine envelopes gc guard inventory journal journal/rebuild kernel " +
		"migration patience transfer/progress",
	// migration: decides and never acts; has words of its own, which the agent translates.
	"internal/migration": "",
	// network: each part knows what is below it; network wires them together.
	"internal/network": "network/bridge network/dump network/filter network/flows network/foreign " +
		"network/hold network/namespace network/nft network/pool network/rtnl network/tunnel",
	"internal/network/bridge": "network/namespace network/pool network/rtnl",
	"internal/network/dump":   "",
	"internal/network/filter": "network/nft network/pool",
	"internal/network/flows":  "network/nft network/pool",
	// network/foreign: what other programs do; changes nothing of ours.
	"internal/network/foreign": "kernel network/dump network/namespace network/nft network/pool " +
		"network/rtnl",
	"internal/network/hold": "",
	// network/namespace: knows no container; likewise network/pool, which also knows nothing of the kernel.
	"internal/network/namespace": "",
	"internal/network/nft":       "network/pool",
	"internal/network/nsstate":   "kernel network/dump",
	"internal/network/pool":      "",
	"internal/network/rtnl":      "network/dump network/pool",
	"internal/network/tunnel": "network/dump network/namespace network/pool network/rtnl " +
		"network/wireguard",
	"internal/network/wireguard": "kernel",
	"internal/patience":          "",
	// node/containers: makes and removes containers; those who know of migrations say which are left alone.
	"internal/node/containers": "api engine files/image guard migration network transfer/proof wire/identity",
	"internal/node/data":       "guard wire wire/stream",
	"internal/node/disk":       "engine files journal",
	// node/rpc: translates; what it answers for is a small interface.
	"internal/node/rpc": "admission api audit control durable engine envelopes files files/image " +
		"files/shared guard journal memory/postcopy migrate migration patience placement/controller policy " +
		"predict residual staging transfer/kept transfer/layers wire wire/identity",
	"internal/node/supervisor": "",
	"internal/policy":          "",
	// predict: a function of measurements.
	"internal/predict": "memory migration wire/stream",
	"internal/reserve": "engine",
	// residual: keeps pages; the user of a copy checks them.
	"internal/residual": "kernel memory migration",
	// restart: knows the node's own engine only, and nothing of the steps of a migration.
	"internal/restart": "api engine engine/embedded guard inventory location network",
	// sampling: measures, and decides nothing; the agent is its Node.
	"internal/sampling": "engine guard kernel memory memory/pipeline migration patience predict",
	// staging: makes copies; where they should be is for placement, what becomes of them for a migration.
	"internal/staging": "api engine envelopes guard kernel memory memory/pipeline migration " +
		"residual transfer/layers transfer/memory/precopy wire/identity wire/stream",
	"internal/statedir": "kernel",
	// switchover: moves packets when it is told to; a migration decides when.
	"internal/switchover": "engine guard migration network/hold",
	// transfer/anew: stops and starts a container; a migration decides when, transfer/files moves files.
	"internal/transfer/anew": "api engine network/hold transfer/progress wire/stream",
	// transfer/files: no engine, no step of a migration; does not choose what moves.
	"internal/transfer/files": "api files files/chunk files/compare files/copies guard kernel migration " +
		"predict transfer/kept transfer/progress wire/stream",
	"internal/transfer/kept": "durable files guard migration",
	"internal/transfer/layers": "api engine files files/fetch files/image files/parts guard migration " +
		"wire/identity wire/stream",
	// transfer/dump: knows no step; memory, packets and files are small interfaces.
	"internal/transfer/dump": "engine guard memory transfer/progress transfer/state wire/stream",
	// transfer/link: knows no step, and of the sections that it carries only that the source has staged.
	"internal/transfer/link": "guard migration predict transfer/progress wire/stream",
	// transfer/memory: no engine, no step of a migration. The two ends wire the rest together.
	"internal/transfer/memory/arriving": "api guard memory migration residual transfer/memory/precopy " +
		"transfer/memory/push transfer/progress wire/stream",
	"internal/transfer/memory/leaving": "api frozen guard kernel memory memory/postcopy migration residual " +
		"staging transfer/link transfer/memory/precopy transfer/memory/push transfer/memory/rounds " +
		"transfer/progress wire/stream",
	"internal/transfer/memory/precopy": "guard memory memory/pipeline wire/stream",
	"internal/transfer/memory/push": "engine files guard memory memory/pipeline memory/postcopy " +
		"migration transfer/progress wire/stream",
	"internal/transfer/memory/rounds": "memory migration predict transfer/memory/precopy " +
		"transfer/progress",
	// transfer/progress: is told what others do, and decides nothing.
	"internal/transfer/progress": "files/copies memory memory/pipeline migration predict wire/stream",
	"internal/transfer/proof":    "api durable engine files/shared guard wire/identity",
	// transfer/state: neither connections nor engines; likewise what is beside it.
	"internal/transfer/state": "files/regular memory memory/pipeline",
	// transfer/volumes: decides and hands over; contents travel elsewhere.
	"internal/transfer/volumes": "api engine files files/inodes files/shared guard kernel migration " +
		"transfer/proof wire/identity",
	"internal/units": "",
	// uplink: the agent's side of the controller: nothing of the other side is linked into the agent.
	"internal/uplink": "api durable engine guard kernel migration wire/identity wire/pinned",
	// wire: moves bytes between nodes that know each other; the agent interprets them.
	"internal/wire":                   "guard patience wire/identity wire/stream",
	"internal/wire/identity":          "",
	"internal/wire/pinned":            "",
	"internal/wire/stream":            "guard",
	"internal/wire/stream/streamtest": "wire/stream",
	"scripts":                         "",
}

// pure packages decide and never act, so that every situation can be tested and reproduced: the same input
// gives the same output. They have no clock, either: see forbidigo in .golangci.yml.
var pure = []string{"compat", "controller/decide", "controller/executor", "migration", "placement", "policy",
	"predict", "units"}

// impure are packages of the standard library and others that act, wait, lock, or draw random numbers.
var impure = []string{"os", "io/fs", "net", "net/http", "syscall", "golang.org/x/sys/unix", "context", "sync",
	"math/rand", "math/rand/v2", "crypto/rand"}

// TestImports: each package imports the packages in its row, and no others.
func TestImports(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range packages(t) {
		if name := p.name(); !strings.HasPrefix(name, "test/") {
			seen[name] = true
			checkImports(t, p)
		}
	}
	for name := range mayImport {
		if !seen[name] {
			t.Errorf("there is no package %s any more: remove its row", name)
		}
	}
}

func checkImports(t *testing.T, p listed) {
	t.Helper()
	row, there := mayImport[p.name()]
	if !there {
		t.Errorf("package %s has no row in mayImport", p.name())
		return
	}
	var own []string
	for _, path := range p.Imports {
		if name, is := strings.CutPrefix(path, module); is {
			own = append(own, strings.TrimPrefix(name, "internal/"))
		}
		if slices.Contains(impure, path) && slices.Contains(pure, strings.TrimPrefix(p.name(), "internal/")) {
			t.Errorf("%s imports %s, and is pure", p.name(), path)
		}
	}
	want := strings.Fields(row)
	for _, name := range own {
		if !slices.Contains(want, name) {
			t.Errorf("%s imports %s, which its row in mayImport does not have", p.name(), name)
		}
	}
	for _, name := range want {
		if !slices.Contains(own, name) {
			t.Errorf("%s does not import %s any more: remove it from its row in mayImport", p.name(), name)
		}
	}
}

// TestProductLinks: the product needs neither the controller nor its database.
func TestProductLinks(t *testing.T) {
	all, err := list()
	if err != nil {
		t.Fatal(err)
	}
	imports := map[string][]string{}
	for _, p := range all {
		imports[p.ImportPath] = p.Imports
	}
	seen := map[string]bool{}
	for todo := []string{module + "cmd/godwit"}; len(todo) > 0; {
		path := todo[0]
		todo = todo[1:]
		if seen[path] {
			continue
		}
		seen[path] = true
		if strings.HasPrefix(path, "go.etcd.io/") || strings.HasPrefix(path, module+"internal/controller") {
			t.Errorf("cmd/godwit links %s", path)
		}
		todo = append(todo, imports[path]...)
	}
	if len(seen) < 100 {
		t.Errorf("only %d packages were looked at", len(seen))
	}
}

// TestUnsafe: only internal/kernel and the packages below it read memory layouts of the kernel, and their
// tests cover that. The generated code of the API is not ours.
func TestUnsafe(t *testing.T) {
	for _, p := range packages(t) {
		if slices.Contains(slices.Concat(p.Imports, p.TestImports, p.XTestImports), "unsafe") &&
			p.name() != "internal/kernel" && !strings.HasPrefix(p.name(), "internal/kernel/") &&
			p.name() != "internal/api" {
			t.Errorf("%s imports unsafe, which is for internal/kernel and below", p.name())
		}
	}
}

// engines are the adapters of engines.
var engines = []string{"containerd", "docker", "embedded", "lxc", "podman"}

// TestTestImports: tests may import anything except the agent, whose API they use, and engines other than
// their own.
func TestTestImports(t *testing.T) {
	for _, p := range packages(t) {
		for _, path := range slices.Concat(p.TestImports, p.XTestImports) {
			name := strings.TrimPrefix(path, module+"internal/")
			if name == "agent" && strings.HasPrefix(p.name(), "internal/") && p.name() != "internal/agent" {
				t.Errorf("tests of %s import the agent: start one and speak its API", p.name())
			}
			if other, is := strings.CutPrefix(name, "engine/"); is && isEngine(p) &&
				slices.Contains(engines, other) &&
				!strings.HasSuffix(p.name(), "/"+other) {
				t.Errorf("tests of %s import the engine %s", p.name(), other)
			}
		}
	}
}

// isEngine reports whether a package is about engines.
func isEngine(p listed) bool { return strings.HasPrefix(p.name(), "internal/engine/") }
