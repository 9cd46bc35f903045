// Package lxc moves LXC containers, as they are started with lxc-start, and makes them LXC containers again.
//
// What a container is comes from its configuration file and from LXC's own tools; they also stop,
// enter and remove it. At the target `lxc-checkpoint -r` makes LXC's monitor and cgroups, and finds
// this program as CRIU: the wrapper of package criu. So the monitor is the parent of the
// container's first process and does not know that its memory came another way. The package knows
// no network peer, no migration and no other engine.
//
// What LXC itself cannot do it cannot do either: `lxc-checkpoint -r` takes no terminals of the
// container over, so a movable container has none (lxc.console.path = none, lxc.tty.max = 0), and
// its monitor does not start it anew when it reboots.
package lxc
