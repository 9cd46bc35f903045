package lxc

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// Name of the engine in definitions.
const Name = "lxc"

// oldest is the first version that was tried.
const oldest = "5.0"

// unifiedOnly is the first version that does not support settings of cgroup version 1, and rejects a
// configuration with them.
const unifiedOnly = "7"

// Config has the engine's directories and programs.
type Config struct {
	StateDir string
	RunDir   string
	Path     string // where LXC keeps containers; "" to ask LXC
	// this program, which becomes proxies and wrappers (package criu); "" for the running one
	Executable string
	Criu       *checkpoint.CRIU // nil to look for it when it is needed
}

// proxyDir has the link by which LXC finds this program as CRIU.
func (c Config) proxyDir() string { return filepath.Join(c.RunDir, "lxc", "gate-bin") }

// Engine is LXC on this node. It implements engine.Engine by its parts, each of which has its own state.
type Engine struct {
	*identities
	*tools
	*catalog
	*life
	*departures
	*arrivals
	noAnew
	noVolumes
}

var _ engine.Engine = (*Engine)(nil)

// Installed reports whether LXC is on this node.
func Installed() bool {
	_, err := exec.LookPath("lxc-checkpoint")
	return err == nil
}

// Readiness examines this node's LXC, which needs no setup. Error: engine.ErrAway.
func Readiness(ctx context.Context) (engine.Readiness, error) {
	ready := engine.Readiness{Title: "LXC"}
	if !Installed() {
		return ready, fmt.Errorf("LXC: %w: there is no lxc-checkpoint", engine.ErrAway)
	}
	var err error
	ready.Version, err = version(ctx)
	ready.Problems = engine.TooOld(ready.Title, ready.Version, oldest)
	return ready, err
}

// version returns the version of LXC's tools.
func version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "lxc-checkpoint", "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask LXC for its version: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// New opens the engine. It starts nothing.
func New(config Config) (*Engine, error) {
	if config.Path == "" {
		out, err := exec.Command("lxc-config", "lxc.lxcpath").Output()
		if err != nil {
			return nil, fmt.Errorf("ask LXC where its containers are: %w", err)
		}
		config.Path = strings.TrimSpace(string(out))
	}
	if !filepath.IsAbs(config.Path) {
		return nil, fmt.Errorf("the directory of LXC's containers, %.80q, is not absolute", config.Path)
	}
	if config.Executable == "" {
		path, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		config.Executable = path
	}
	if config.Criu == nil {
		config.Criu = &checkpoint.CRIU{}
	}
	for _, dir := range []string{filepath.Join(config.StateDir, "lxc"), filepath.Join(config.RunDir, "lxc")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make directory for LXC containers: %w", err)
		}
	}
	if _, err := checkpoint.ProxyPath(config.proxyDir(), config.Executable); err != nil {
		return nil, err
	}
	return assemble(config), nil
}

// assemble makes the engine of its parts, the lowest first.
func assemble(config Config) *Engine {
	e := &Engine{identities: &identities{config: config}, tools: newTools(config.Path)}
	e.catalog = &catalog{config: config, identities: e.identities, tools: e.tools, listed: listLimit}
	r := &remover{e.tools}
	e.life = &life{
		config: config, identities: e.identities, tools: e.tools, catalog: e.catalog, remover: r,
	}
	e.departures = &departures{
		identities: e.identities, catalog: e.catalog, remover: r, criu: config.Criu,
	}
	e.arrivals = &arrivals{
		config: config, identities: e.identities, tools: e.tools, catalog: e.catalog, remover: r,
	}
	return e
}

// Name of the engine.
func (e *Engine) Name() string { return Name }
