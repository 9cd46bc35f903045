package lxc

import (
	"path/filepath"
	"regexp"
)

// Everything that becomes a path is checked against a pattern first.
var (
	idPattern   = regexp.MustCompile(`^[0-9a-f]{64}$`)
	namePattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)
)

// place has the paths of one container's files.
type place struct {
	lxc   string // the container's directory among LXC's
	state string // ours, survives a reboot
	run   string // ours, does not
	name  string
}

func (p place) config() string  { return filepath.Join(p.lxc, "config") }
func (p place) rootfs() string  { return filepath.Join(p.lxc, "rootfs") }
func (p place) own() string     { return filepath.Join(p.lxc, ownName) }
func (p place) aside() string   { return filepath.Join(p.lxc, asideName) }
func (p place) payload() string { return "/lxc.payload." + p.name } // LXC's names since 4.0
func (p place) watcher() string { return "/lxc.monitor." + p.name }

// Our files in LXC's directory of a container.
const (
	ownName   = "godwit.json"          // the container's id
	asideName = "config.before-godwit" // the configuration of a container that is leaving
)

func (p place) arrival() string   { return filepath.Join(p.state, "arrival.json") }
func (p place) resumed() string   { return filepath.Join(p.state, "resumed") }
func (p place) departure() string { return filepath.Join(p.state, "departure.json") }

func (p place) images() string       { return filepath.Join(p.run, "images") }
func (p place) spared() string       { return filepath.Join(p.run, "spared.json") }
func (p place) criuWork() string     { return filepath.Join(p.run, "criu") }
func (p place) proxy() string        { return filepath.Join(p.run, "gate.sock") }
func (p place) wrapper() string      { return filepath.Join(p.run, "criu.sock") }
func (p place) lxcLog() string       { return filepath.Join(p.run, "lxc.log") }
func (p place) memory() string       { return filepath.Join(p.run, "memory.json") }
func (p place) pagerLog() string     { return filepath.Join(p.run, "pager.log") }
func (p place) remoteSocket() string { return filepath.Join(p.run, "late.sock") }
