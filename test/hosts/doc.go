// Package hosts moves containers of all engines between stock Debian machines, which it runs in
// QEMU: Debian's kernel, systemd, AppArmor, cgroup version 2, engines as Debian configures them,
// and Godwit installed as the README says. Its tests need the build tag hosts, and `make
// test-hosts` runs them.
//
// HOSTS_SUITES names the suites of the two machines, HOSTS_ENGINES the engines if not all are to be
// tried, HOSTS_LONG asks for all modes, reboots and restarts of agents, HOSTS_JSON says where the
// results go.
package hosts
