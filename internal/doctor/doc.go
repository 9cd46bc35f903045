// Package doctor tells a person whether containers can be moved from and to this machine, and if not, what
// is missing, what is lost without it and how to get it.
//
// It examines each requirement, but draws no conclusion from versions: a real trial decides, in which a
// tiny container with an open TCP connection is checkpointed and restored and must answer on the same
// connection. The package knows nothing of migrations, engines or other nodes, so that it works on a
// machine where nothing else does.
package doctor
