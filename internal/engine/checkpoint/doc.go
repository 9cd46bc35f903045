// Package checkpoint dumps and restores the processes of a container with CRIU, whichever engine has
// made them: it finds what stands against it, freezes them at a moment at which nothing is
// lost, dumps them so that they can go on, lets them go on, and at the target lets CRIU restore
// them through the restore proxy while their memory is filled.
//
// It knows processes, cgroups, namespaces and CRIU. It does not know what a container is called,
// where an engine keeps it, or how it is made and removed: the adapters below engine tell it what
// it must know, and keep the records.
package checkpoint
