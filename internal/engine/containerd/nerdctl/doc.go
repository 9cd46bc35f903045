// Package nerdctl knows what nerdctl makes of a container of containerd: labels, hooks of its
// runtime, a program that takes its log, and files of its own. All of it is facts about nerdctl 2.0
// to 2.2; nerdctl has no daemon that could be asked.
//
// A container that comes is made nerdctl's again by this node's nerdctl: its hooks and its log are
// that program's, whatever the source has named, and of what the source tells only labels are taken
// whose meaning is known. The program runs as root with them.
package nerdctl
