// Package nerdctl knows what nerdctl makes for a container of containerd: labels, hooks of its runtime, a
// program that takes its log, and files of its own. These are facts about nerdctl 2.0 to 2.2; nerdctl has
// no daemon that could be queried.
//
// An arriving container is made to belong to this node's nerdctl: its hooks and its log use this node's
// program, whatever the source has named. From the source, only labels with a known meaning are accepted,
// because the program runs as root with them.
package nerdctl
