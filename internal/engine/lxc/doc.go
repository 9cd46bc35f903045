// Package lxc moves LXC containers that lxc-start has started, and makes them LXC containers again.
//
// Its knowledge of a container comes from the configuration file and from LXC's own tools, which also stop,
// enter and remove the container. At the target `lxc-checkpoint -r` makes LXC's monitor and cgroups, and
// finds this program as CRIU: the wrapper of package criu. So the monitor is the parent of the container's
// first process and does not know that its memory came another way. The package knows no network peer, no
// migration and no other engine.
//
// It shares the limits of LXC: `lxc-checkpoint -r` does not take over terminals of the container, so a
// movable container has none (lxc.console.path = none, lxc.tty.max = 0), and its monitor does not start it
// anew when it reboots.
package lxc
